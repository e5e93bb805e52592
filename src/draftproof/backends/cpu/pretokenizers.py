"""How byte-level vocabularies cut a text into the pieces that tokens are made within.

A GGUF file names the way (`tokenizer.ggml.pre`) and holds nothing more of it. The patterns are part
of what a model was trained with: another pattern gives other tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer
from tokenizers import normalizers as norms
from tokenizers import pre_tokenizers as pre

from draftproof.errors import UnsupportedModel

ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way.

    Args:
        pattern: What matches is a piece, and so is what lies between. None is GPT-2's pattern,
            which the library knows by itself.
        single_digits: Every digit is a piece, whatever the pattern says.
        composed: Text is put into Unicode's form NFC first.
        keeps_tokens: A piece that is a token stays whole even where no merges make it.
        begins: A prompt begins with the token for it, unless the file says otherwise.
    """

    pattern: str | None = None
    single_digits: bool = False
    composed: bool = False
    keeps_tokens: bool = False
    begins: bool = False

    def apply(self, tokenizer: Tokenizer) -> None:
        """Make `tokenizer` cut like this."""
        if self.composed:
            tokenizer.normalizer = norms.NFC()
        steps: list[pre.PreTokenizer] = []
        if self.single_digits:
            steps.append(pre.Digits(individual_digits=True))
        if self.pattern is not None:
            steps.append(pre.Split(Regex(self.pattern), behavior="isolated"))
        steps.append(pre.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None))
        tokenizer.pre_tokenizer = pre.Sequence(steps)


GPT2 = PreTokenizer()
DIGITS = PreTokenizer(single_digits=True)
THREE_DIGITS = rf"{ENGLISH}|{WORD}|\p{{N}}{{1,3}}|{SYMBOLS}|{SPACES}"
LLAMA3 = PreTokenizer(THREE_DIGITS, keeps_tokens=True, begins=True)
SMAUG = PreTokenizer(THREE_DIGITS)
QWEN2 = PreTokenizer(rf"{ENGLISH}|{WORD}|\p{{N}}|{SYMBOLS}|{SPACES}", composed=True)
TEKKEN = PreTokenizer(
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}",
    keeps_tokens=True,
    begins=True,
)

KNOWN = {
    "default": GPT2,
    "gpt-2": GPT2,
    "smollm": DIGITS,
    "starcoder": DIGITS,
    "refact": DIGITS,
    "minerva-7b": DIGITS,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "falcon3": LLAMA3,
    "pixtral": LLAMA3,
    "midm-2.0": LLAMA3,
    "smaug-bpe": SMAUG,
    "tekken": TEKKEN,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "megrez": QWEN2,
    "kormo": QWEN2,
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The way that a GGUF file names.

    Raises:
        UnsupportedModel: It is none of the `KNOWN` ones.
    """
    if name not in KNOWN:
        raise UnsupportedModel(
            f"no pre-tokeniser is known by the name {name!r}",
            why="without it text would become other tokens than the model was trained with; known "
            f"are {', '.join(sorted(KNOWN))}",
            remedy="run the model with --backend torch, or choose another model",
        )
    return KNOWN[name]
