"""Lines that tokenizers are compared on: code, prose, Chinese, emoji and odd characters."""
# ruff: noqa: SIM905  # words read better in a row

from __future__ import annotations

import random
import sys
import sysconfig
import unicodedata
from collections.abc import Callable
from pathlib import Path

ENGLISH = """
the a an old small river window letter answer morning engine garden question paper winter city
was is has keeps finds opens carries turns leaves builds reads writes waits falls returns
quickly never often almost quietly again twice under beside without between after before because
don't it's we'll they've I'd you're can't SHOULDN'T It'S naïve café Zürich coöperate façade
""".split()
CHINESE = """
今天天气很好我们去公园散步吧 他说这件事情很重要必须尽快完成 机器学习模型需要大量的数据来训练
请问图书馆在哪里 這是繁體中文的句子包含一些標點符號 编译器把源代码翻译成机器指令
第一章讲述了故事的背景 价格是三百二十五元 春眠不觉晓处处闻啼鸟 你好世界
""".split()
MIXED = """
Привет мир как дела сегодня こんにちは世界 カタカナ ひらがな 안녕하세요 한국어
مرحبا بالعالم שלום עולם
नमस्ते दुनिया สวัสดีชาวโลก Γειά σου Κόσμε xin chào thế giới ǅungla ſtraße İstanbul ŉ ﬁne Ⅷ ½ ² ٣ ۴ ४ 五
""".split()
EMOJI = (
    "😀 😂 🤖 🚀 ❤️ ☺ ☺️ 👍🏽 👩🏿‍🚀 👨‍👩‍👧‍👦 🏳️‍🌈 🏴‍☠️ 🇩🇪 🇯🇵🇫🇷 🇺 👁️‍🗨️ "
    "🧑🏻‍❤️‍💋‍🧑🏿 #️⃣ 1️⃣ ©️ ™ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ✌🏼 🤷🏾‍♀️ 🫠"
).split()
MARKUP = """
<s> </s> <unk> <pad> <bos> <eos> <|im_start|> <|im_end|> <|endoftext|> <|begin_of_text|>
[INST] [/INST]
<start_of_turn> <end_of_turn> <0x0A> <0xE4> <tool_call> </tool_call> <think>
[PAD151700] <unused3> <table>
<h1> </b> <|im_start <|im_end|>| |im_end|> <repo_name> <mask> [multimodal]
""".split()
MARKS = "\u0300\u0301\u0308\u0327\u0338\u093c\u094d\u0e31\u3099\u200d\ufe0f\u20e3"
WHITE = " \t\n\r\v\f\x1c\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\ufeff\u200b\u2581"


def lines(count: int, seed: int = 0) -> list[str]:
    """`count` texts, the same for the same seed and the same Python: a tenth of each kind below."""
    draw = random.Random(seed)
    code = _code(draw)
    kinds: list[Callable[[random.Random], str]] = [
        lambda draw: draw.choice(code),
        lambda draw: "\n".join(draw.choices(code, k=draw.randint(2, 8))),
        _prose,
        _chinese,
        _emoji,
        _marked_up,
        _mixed,
        _white,
        _numbers,
        _anything,
    ]
    return [kinds[k % len(kinds)](draw) for k in range(count)]


def composed(text: str) -> bool:
    """Whether Unicode's form NFC leaves a text as it is."""
    return unicodedata.is_normalized("NFC", text)


def _code(draw: random.Random) -> list[str]:
    """Lines of Python's own library, indentation and all."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(library.glob("*.py")) + sorted(library.glob("json/*.py"))
    found: list[str] = []
    for path in draw.sample(files, min(60, len(files))):
        found += path.read_text("utf-8", errors="replace").splitlines()
    assert len(found) > 1000
    return found


def _prose(draw: random.Random) -> str:
    words = draw.choices(ENGLISH, k=draw.randint(3, 30))
    words = [draw.choice([word, word, word, word.title(), word.upper()]) for word in words]
    marks = [", ", ". ", "; ", ' "', "! ", " — ", "... ", "? ", ") ", " (", "’s ", "'S ", "\n\n"]
    return "".join(word + draw.choice([" "] * 12 + marks) for word in words)


def _chinese(draw: random.Random) -> str:
    marks = ["，", "。", "！", "、", "：", "“", "”", " ", "\n", "　", "（2024年）", "API", "3.14"]
    rare = "".join(chr(draw.randint(0x4E00, 0x9FFF)) for _ in range(draw.randint(0, 4)))
    parts = draw.choices(CHINESE, k=draw.randint(1, 5))
    return rare + "".join(part + draw.choice(marks) for part in parts)


def _emoji(draw: random.Random) -> str:
    parts = [draw.choice([*EMOJI, *EMOJI, draw.choice(ENGLISH)]) for _ in range(draw.randint(1, 9))]
    return draw.choice(["", " ", "\n"]).join(parts)


def _marked_up(draw: random.Random) -> str:
    """Strings that are special tokens of some model, or nearly."""
    parts = [draw.choice([*MARKUP, draw.choice(ENGLISH)]) for _ in range(draw.randint(1, 8))]
    return draw.choice(["", " ", "  ", "\n"]).join(parts)


def _mixed(draw: random.Random) -> str:
    """Scripts, marks without a letter, and the same letters composed and decomposed."""
    parts = draw.choices([*MIXED, *ENGLISH[-10:], *MARKS], k=draw.randint(1, 10))
    parts = [
        unicodedata.normalize(draw.choice(["NFC", "NFD", "NFKC", "NFKD"]), part)
        if draw.random() < 0.4
        else part
        for part in parts
    ]
    return draw.choice(["", " "]).join(parts)


def _white(draw: random.Random) -> str:
    """Runs of spaces, tabs, line ends and rarer blanks between words."""
    text = ""
    for _ in range(draw.randint(1, 6)):
        blank = draw.choice([" ", " ", "\n", "\t", "\r\n", *WHITE])
        length = draw.choice([1, 2, 3, 4, 7, 8, 16, 24, 31, 32, 33, 40, 64, 100])
        text += blank * length + draw.choice(["", *ENGLISH, "x = ", "#", "12"])
    return text


def _numbers(draw: random.Random) -> str:
    parts = []
    for _ in range(draw.randint(1, 8)):
        number = draw.randint(0, 10 ** draw.randint(1, 20))
        parts.append(
            draw.choice([f"{number}", f"{number:,}", f"{number:#x}", f"-{number}.5e3", "٣٤"])
        )
    return draw.choice([" ", "  ", "    ", "", ",", "\n", "v"]).join(parts)


def _anything(draw: random.Random) -> str:
    """Any characters at all: control and private ones, unassigned ones, other planes."""
    pick: list[Callable[[], int]] = [
        lambda: draw.randint(0, 0x7F),
        lambda: draw.randint(0, 0xFF),
        lambda: draw.randint(0x100, 0x2FFF),
        lambda: draw.randint(0xE000, 0xFFFF),
        lambda: draw.randint(0x10000, sys.maxunicode),
        lambda: ord(draw.choice(MARKS + WHITE)),
    ]
    codes = [draw.choice(pick)() for _ in range(draw.randint(1, 40))]
    return "".join(map(chr, codes))
