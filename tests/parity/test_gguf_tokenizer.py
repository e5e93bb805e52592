"""Tokenizers from GGUF metadata, against transformers and against what models were published with.

transformers' reading of a GGUF file loses a little of three of the families below. There the
reference is its tokenizer with the lost step put back, and without it every line must agree in
which that step has nothing to do.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import category

import numpy as np
import pytest
import tiny_vocabularies as tiny
import tokenizers
from texts import composed, lines
from tokenizers import AddedToken, models, normalizers
from tokenizers import pre_tokenizers as pre

from draftproof.backends import load_tokenizer
from draftproof.backends.cpu.gguf import open_gguf
from draftproof.backends.cpu.merges import merges_of
from draftproof.backends.cpu.pretokenizers import KNOWN
from draftproof.backends.cpu.tokenizer import GgufTokenizer
from draftproof.catalog import Catalog, resolve
from draftproof.catalog.entries import ENTRIES
from draftproof.errors import InvalidInput, ModelCorrupt, UnsupportedModel
from draftproof.ports import Tokenizer
from draftproof.text.detokenize import Detokenizer

CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Why?\n\n"}],
    [
        {"role": "user", "content": "def f(x):\n    return x  # 12"},
        {"role": "assistant", "content": "It's 你好 <|im_end|> 👩🏿‍🚀"},
        {"role": "user", "content": ""},
    ],
]


def merges_one_by_one(tokens: list[str], priorities: list[float]) -> list[tuple[str, str]]:
    """Every cut of a token in two tokens, in order: the slow, obvious twin of `merges_of`."""
    ids = {token: index for index, token in enumerate(tokens)}
    cuts = [
        (-priorities[index], -cut, cut - len(token), index, token[:cut], token[cut:])
        for index, token in enumerate(tokens)
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    return [(left, right) for *_, left, right in sorted(cuts)]


# --- real files


def put_digits_back(inner: tokenizers.Tokenizer, metadata: Any) -> None:
    """SmolLM2 cuts every digit off first: the file says so by a name that transformers ignores."""
    inner.pre_tokenizer = pre.Sequence(
        [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]
    )


def put_composition_back(inner: tokenizers.Tokenizer, metadata: Any) -> None:
    """Qwen's texts are in NFC, of which the file says nothing."""
    inner.normalizer = normalizers.NFC()


def put_runs_back(inner: tokenizers.Tokenizer, metadata: Any) -> None:
    """Gemma's runs of spaces are tokens that users defined, found before anything is merged.

    The longest is of 31 spaces; only a longer run shows in which order they are joined.
    """
    types = metadata["tokenizer.ggml.token_type"].tolist()
    tokens = [
        token.replace(" ", "▁") if kind == 4 and not token.strip(" ") else token
        for token, kind in zip(metadata["tokenizer.ggml.tokens"], types, strict=True)
    ]
    scores = metadata["tokenizer.ggml.scores"].tolist()
    first = [1.0 if kind == 4 else score for score, kind in zip(scores, types, strict=True)]
    inner.model = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=merges_one_by_one(tokens, first),
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    user_defined = [token for token, kind in zip(tokens, types, strict=True) if kind == 4]
    inner.add_tokens([AddedToken(token, normalized=False) for token in user_defined])


@dataclass(frozen=True)
class Case:
    """A file: how transformers is put right, which texts that can change, which come back."""

    put_back: Callable[[tokenizers.Tokenizer, Any], None]
    concerns: Callable[[str], bool]
    lossless: Callable[[str], bool] = lambda text: True


QWEN = Case(put_composition_back, lambda text: not composed(text), composed)
CASES = {
    "smollm2-135m": Case(
        put_digits_back, lambda text: any(category(char)[0] == "N" for char in text)
    ),
    "gemma-3-270m": Case(
        put_runs_back,
        lambda text: "▁" in text or " " * 32 in text,
        lambda text: "▁" not in text,
    ),
    "qwen2.5-coder-0.5b": QWEN,
    "qwen2.5-coder-1.5b": QWEN,
}
FETCHED = {"smollm2-135m", "gemma-3-270m"}  # the others are used where they are already


@pytest.fixture(scope="module", params=CASES)
def real(request: pytest.FixtureRequest) -> tuple[Case, Any, GgufTokenizer, Any]:
    name = request.param
    if name not in FETCHED and not Catalog().path_of(ENTRIES[name]).exists():
        pytest.skip(f"{name} is not in the cache")
    path = resolve(name)
    file = open_gguf(path)
    theirs: Any = load_tokenizer(path)
    return CASES[name], file.metadata, GgufTokenizer(file.metadata), theirs


@pytest.mark.weights
@pytest.mark.timeout(900)
def test_ten_thousand_lines(real: tuple[Case, Any, GgufTokenizer, Any]) -> None:
    case, metadata, ours, theirs = real
    texts = lines(10_000)
    ids = [ours.encode(text) for text in texts]
    untouched = [k for k, text in enumerate(texts) if not case.concerns(text)]
    assert len(untouched) > 5_000
    assert [texts[k] for k in untouched if ids[k] != theirs.encode(texts[k])] == []
    assert any(tokens != theirs.encode(text) for text, tokens in zip(texts, ids, strict=True))

    assert ours.vocabulary == theirs.vocabulary  # before the reference is put right
    case.put_back(theirs.tokenizer.backend_tokenizer, metadata)
    wrong = [text for text, tokens in zip(texts, ids, strict=True) if tokens != theirs.encode(text)]
    assert wrong == []

    decoded = [ours.decode(tokens) for tokens in ids]
    assert decoded == [theirs.decode(tokens) for tokens in ids]
    special = set(theirs.tokenizer.all_special_ids)
    special |= {k for k, token in theirs.tokenizer.added_tokens_decoder.items() if token.special}
    spell = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    lacking = set(pre.ByteLevel.alphabet()) - ours.vocabulary.keys()  # SmolLM2 lacks 21 bytes
    bare = {text: ours.encode(text, special=False) for text in texts if case.lossless(text)}
    comes_back = [
        text
        for text, tokens in bare.items()
        if not special & set(tokens)
        and (metadata["tokenizer.ggml.model"] == "llama" or not lacking & spelled_by(spell, text))
    ]
    assert len(comes_back) > 7_000
    assert [text for text in comes_back if ours.decode(bare[text]) != text] == []


@pytest.mark.weights
@pytest.mark.timeout(900)
def test_every_id_decodes_alike(real: tuple[Case, Any, GgufTokenizer, Any]) -> None:
    _, metadata, ours, theirs = real
    count = len(metadata["tokenizer.ggml.tokens"])
    assert [k for k in range(count) if ours.decode([k]) != theirs.decode([k])] == []
    draw = random.Random(0)
    for _ in range(2_000):
        ids = [draw.randrange(count) for _ in range(draw.randint(0, 20))]
        assert ours.decode(ids) == theirs.decode(ids)
    assert ours.decode([count, -1, 2**40]) == ""


@pytest.mark.weights
@pytest.mark.timeout(900)
def test_real_conversations(real: tuple[Case, Any, GgufTokenizer, Any]) -> None:
    _, metadata, ours, theirs = real
    if "tokenizer.chat_template" not in metadata:
        with pytest.raises(UnsupportedModel, match="no chat template"):
            ours.chat(CHATS[0])
        return
    for conversation in CHATS:
        assert ours.chat(conversation) == theirs.chat(conversation)


@pytest.mark.weights
@pytest.mark.timeout(900)
def test_real_text_in_pieces(real: tuple[Case, Any, GgufTokenizer, Any]) -> None:
    _, _, ours, _ = real
    for text in lines(400, seed=3):
        ids = ours.encode(text)
        detokenizer = Detokenizer(ours)
        pieces = [detokenizer.push(token) for token in ids]
        assert "".join(pieces) + detokenizer.flush() == ours.decode(ids)


def spelled_by(spell: pre.PreTokenizer, text: str) -> set[str]:
    return {char for piece, _ in spell.pre_tokenize_str(text) for char in piece}


# --- small vocabularies, against tokenizers as models are published with


ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ONE_DIGIT = (
    ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UP_TO_THREE = ONE_DIGIT.replace(r"\p{N}|", r"\p{N}{1,3}|")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def split(pattern: str) -> dict[str, Any]:
    first = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return {"type": "Sequence", "pretokenizers": [first, {**BYTES, "use_regex": False}]}


PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt-2": {"pre_tokenizer": BYTES},
    "smollm": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES],
        }
    },
    "llama-bpe": {"pre_tokenizer": split(UP_TO_THREE), "model": {"ignore_merges": True}},
    "smaug-bpe": {"pre_tokenizer": split(UP_TO_THREE)},
    "qwen2": {"pre_tokenizer": split(ONE_DIGIT), "normalizer": {"type": "NFC"}},
}


def published(metadata: dict[str, Any], parts: dict[str, Any]) -> tokenizers.Tokenizer:
    """The vocabulary in the form of a tokenizer.json."""
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata["tokenizer.ggml.token_type"].tolist()
    model = {
        "type": "BPE",
        "vocab": {token: index for index, token in enumerate(tokens)},
        "merges": [merge.split(" ") for merge in metadata.get("tokenizer.ggml.merges", ())],
        **parts.get("model", {}),
    }
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": index, "content": token, "special": types[index] == tiny.CONTROL, **plain}
        for index, token in enumerate(tokens)
        if types[index] in (tiny.CONTROL, tiny.USER_DEFINED)
    ]
    return tokenizers.Tokenizer.from_str(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": added,
                "normalizer": parts.get("normalizer"),
                "pre_tokenizer": parts.get("pre_tokenizer"),
                "post_processor": None,
                "decoder": parts.get("decoder", BYTES),
                "model": model,
            }
        )
    )


def different(ours: Tokenizer, theirs: tokenizers.Tokenizer, texts: list[str]) -> list[str]:
    return [
        text
        for text in texts
        if list(ours.encode(text, special=False)) != theirs.encode(text).ids
        or ours.decode(ours.encode(text)) != theirs.decode(theirs.encode(text).ids)
    ]


@pytest.mark.parametrize("name", PUBLISHED)
def test_byte_level_families(name: str) -> None:
    metadata = tiny.byte_level(name)
    ours, texts = GgufTokenizer(metadata), lines(1_500, seed=4)
    assert different(ours, published(metadata, PUBLISHED[name]), texts) == []
    for other, parts in PUBLISHED.items():  # the lines tell one family from another
        if other != name:
            assert different(ours, published(metadata, parts), texts), other


def test_known_names_are_of_tested_families() -> None:
    tested = [KNOWN[name] for name in [*PUBLISHED, "tekken"]]
    assert all(way in tested for way in KNOWN.values())


def replaced(prefix: bool) -> dict[str, Any]:
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    before = [{"type": "Prepend", "prepend": "▁"}] if prefix else []
    after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, replace]},
        "decoder": {
            "type": "Sequence",
            "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *after],
        },
    }


@pytest.mark.parametrize("gemma", [False, True])
def test_sentencepiece(gemma: bool) -> None:
    metadata = tiny.sentencepiece(gemma=gemma)
    types = metadata["tokenizer.ggml.token_type"].tolist()
    spelled = [
        token.replace(" ", "▁") if not token.strip(" ") else token
        for token in metadata["tokenizer.ggml.tokens"]
    ]
    scores = metadata["tokenizer.ggml.scores"].tolist()
    first = [1.0 if kind == 4 else score for score, kind in zip(scores, types, strict=True)]
    merges = merges_one_by_one(spelled, first)
    model = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "merges": merges}
    parts = {**replaced(prefix=not gemma), "model": model}
    reference = published({**metadata, "tokenizer.ggml.tokens": spelled}, parts)
    ours, texts = GgufTokenizer(metadata), lines(1_500, seed=4)
    assert different(ours, reference, texts) == []
    wrong = {**parts, **replaced(prefix=gemma)}  # a control: the other manner of prefixing
    assert different(ours, published({**metadata, "tokenizer.ggml.tokens": spelled}, wrong), texts)
    plain = [text for text in texts if "▁" not in text and "<" not in text]  # no added tokens
    assert len(plain) > 1_000
    assert [text for text in plain if ours.decode(ours.encode(text)) != text] == []


def unprefixed(text: str) -> bool:
    """Whether a text begins with no space, where transformers puts no prefix, and needs none later.

    What follows a special token needs one; transformers puts one only at the beginning.
    """
    return text[:1] not in " ▁" and "<" not in text


SMALL: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[str], bool]]] = {
    "gpt2": (lambda: tiny.byte_level("default"), lambda text: True),
    "smaug": (lambda: tiny.byte_level("smaug-bpe"), lambda text: True),
    "tekken": (lambda: tiny.byte_level("tekken", whole=False), lambda text: True),
    "qwen2": (lambda: tiny.byte_level("qwen2", add_bos_token=True), composed),
    "end": (lambda: tiny.byte_level("default", add_eos_token=True), lambda text: True),
    "llama": (tiny.sentencepiece, unprefixed),
    "llama by default": (lambda: tiny.sentencepiece(add_bos_token=None), unprefixed),
    "gemma": (
        lambda: tiny.sentencepiece(gemma=True),
        lambda text: not any(part in text for part in ("  ", "▁", "<")),
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_files_in_transformers(name: str, tmp_path: Path) -> None:
    make, agrees = SMALL[name]
    metadata = make()
    path = tiny.write(metadata, tmp_path / "tiny.gguf")
    ours, theirs = GgufTokenizer(open_gguf(path).metadata), load_tokenizer(path)
    checked = 0
    for text in lines(600, seed=5):
        if agrees(text):
            checked += 1
            for special in (True, False):
                assert ours.encode(text, special=special) == theirs.encode(text, special=special)
            assert ours.decode(ours.encode(text)) == theirs.decode(ours.encode(text))
    assert checked > 300
    if "tokenizer.chat_template" in metadata:
        for conversation in CHATS:
            assert ours.chat(conversation) == theirs.chat(conversation)


def test_pieces_of_bytes_join() -> None:
    ours = GgufTokenizer(tiny.sentencepiece())
    for text in lines(300, seed=6):
        ids = ours.encode(text)
        detokenizer = Detokenizer(ours)
        pieces = [detokenizer.push(token) for token in ids]
        assert "".join(pieces) + detokenizer.flush() == ours.decode(ids)


def test_what_a_prompt_begins_with() -> None:
    def begins(metadata: dict[str, Any]) -> bool:
        ours = GgufTokenizer(metadata)
        bos = metadata["tokenizer.ggml.bos_token_id"]
        return ours.encode("x", special=True) == (bos, *ours.encode("x", special=False))

    assert begins(tiny.byte_level("llama-bpe", add_bos_token=None))
    assert begins(tiny.byte_level("tekken", add_bos_token=None))
    assert begins(tiny.sentencepiece(add_bos_token=None))
    assert not begins(tiny.byte_level("llama-bpe", add_bos_token=False))
    assert not begins(tiny.byte_level("qwen2", add_bos_token=None))
    assert not begins(tiny.sentencepiece(add_bos_token=False))


def test_ids_that_decode_to_nothing() -> None:
    metadata = tiny.byte_level("default")
    ours = GgufTokenizer(metadata)
    bos, eos = metadata["tokenizer.ggml.bos_token_id"], metadata["tokenizer.ggml.eos_token_id"]
    hello = ours.encode("hello", special=False)
    assert ours.decode([bos, *hello, eos, 10**6, -1, 2**40]) == "hello"
    assert ours.decode([]) == ""
    assert ours.decode([ours.vocabulary["[PAD1]"]]) == "[PAD1]"  # as transformers has it
    assert ours.decode([ours.vocabulary["<think>"]]) == "<think>"
    assert ours.vocabulary is ours.vocabulary
    assert len(ours.vocabulary) == len(metadata["tokenizer.ggml.tokens"])


def test_control_tokens_outside_the_byte_alphabet() -> None:
    metadata = tiny.byte_level("default")
    tokens, types = list(metadata["tokenizer.ggml.tokens"]), metadata["tokenizer.ggml.token_type"]
    metadata["tokenizer.ggml.tokens"] = [*tokens, "<｜User｜>", "日本"]
    metadata["tokenizer.ggml.token_type"] = np.append(types, [3, 1]).astype(np.int32)
    ours = GgufTokenizer(metadata)
    assert ours.encode("<｜User｜>", special=False) == (len(tokens),)
    assert ours.decode([len(tokens)]) == ""
    assert ours.decode([len(tokens) + 1]) == "日本"


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(InvalidInput, match="surrogate") as caught:
        GgufTokenizer(tiny.byte_level("default")).encode("a\ud800b")
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"pre": "falcon"}, UnsupportedModel, "'falcon'"),
        ({"model": "rwkv"}, UnsupportedModel, "'rwkv'"),
        ({"model": None}, UnsupportedModel, "no tokenizer"),
        ({"tokens": None}, ModelCorrupt, "no tokens"),
        ({"tokens": [1, 2]}, ModelCorrupt, "cannot be used"),
        ({"tokens": ["a", "\udcff"], "token_type": [1, 1]}, ModelCorrupt, "cannot be used"),
        ({"token_type": np.array([1])}, ModelCorrupt, "types"),
        ({"merges": None}, ModelCorrupt, "no merges"),
        ({"merges": ["a b c"]}, ModelCorrupt, "not a pair"),
        ({"merges": ["nowhere here"]}, ModelCorrupt, "cannot be used"),
        ({"bos_token_id": 10**6}, ModelCorrupt, "bos token has the id 1000000"),
        ({"model": "llama"}, ModelCorrupt, "0 scores"),
    ],
)
def test_vocabularies_that_are_refused(
    changes: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match) as caught:
        GgufTokenizer(tiny.byte_level("default", **changes))
    assert caught.value.remedy  # type: ignore[attr-defined]


def test_refusal_lists_what_is_known() -> None:
    with pytest.raises(UnsupportedModel) as caught:
        GgufTokenizer(tiny.byte_level("falcon"))
    assert all(name in caught.value.why for name in KNOWN)


@pytest.mark.parametrize("seed", range(8))
def test_merges_against_the_slow_twin(seed: int) -> None:
    draw = random.Random(seed)
    letters = "ab▁\U0001f600"
    tokens = sorted({"".join(draw.choices(letters, k=draw.randint(0, 5))) for _ in range(400)})
    draw.shuffle(tokens)
    priorities = [float(draw.randint(-20, 0)) for _ in tokens]  # many are equal
    found = merges_of(tokens, np.array(priorities))
    assert found == merges_one_by_one(tokens, priorities)
    assert len(found) > 200


def test_merges_where_there_are_none() -> None:
    assert merges_of([], np.array([])) == []
    assert merges_of(["a", "", "b"], np.array([0.0, 1.0, 2.0])) == []


def test_no_runtime_is_loaded() -> None:
    code = (
        "import sys, draftproof.backends.cpu.tokenizer; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'gguf', 'jinja2')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
