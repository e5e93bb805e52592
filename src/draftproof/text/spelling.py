"""What tokens stand for, in bytes, so that tokens of different vocabularies can be compared.

Three ways of writing tokens down are known:

- byte-level (GPT-2, Llama 3, Qwen): one printable character per byte, `Ġ` for a space;
- SentencePiece (Llama 2, Gemma, T5): text with `▁` for a space, and `<0xE4>` for a lone byte;
- plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from draftproof.ports import Tokenizer

SPACE = "\u2581"  # what SentencePiece writes for a space
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
GROUP = 64  # tokens that are decoded at once, to see whether decoding leaves one out


class Spelling:
    """The bytes that each token of a tokenizer stands for.

    Special tokens are those that decoding leaves out. They are no text and go by their names.

    Args:
        tokenizer: Whose tokens they are.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        vocabulary = tokenizer.vocabulary
        written = _spell(vocabulary)
        left_out = set(_left_out(tokenizer, written))
        self.special: dict[int, str] = {
            token: name for name, token in vocabulary.items() if token in left_out
        }
        self.bytes: dict[int, bytes] = {
            token: data for token, data in written.items() if token not in left_out
        }

    def ids(self) -> dict[bytes | str, int]:
        """Tokens by what they stand for: bytes, or the name of a special token.

        Where SentencePiece has a character's byte besides the character, it is the character.
        """
        falling = sorted(self.bytes, reverse=True)
        names = self._tokenizer.vocabulary
        lone = [names[f"<0x{byte:02X}>"] for byte in range(128) if f"<0x{byte:02X}>" in names]
        found: dict[bytes | str, int] = {name: token for token, name in self.special.items()}
        found.update((self.bytes[token], token) for token in lone if token in self.bytes)
        taken = set(lone)
        found.update((self.bytes[token], token) for token in falling if token not in taken)
        return found

    def spell(self, tokens: Sequence[int]) -> bytes:
        """What `tokens` stand for together; nothing for ids outside the vocabulary."""
        return b"".join(map(self._of, tokens))

    def encode(self, text: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Tokens of `text`, and where in its UTF-8 bytes each of them ends.

        Returns:
            None where they do not stand for just this text: a tokenizer may change or drop some.
        """
        tokens = self.plain(text)
        data = text.encode()
        spelled = self.spell(tokens)
        added = len(spelled) - len(data)  # SentencePiece may put a space before a text
        if added not in (0, 1) or spelled != b" " * added + data:
            return None
        ends = accumulate((len(self._of(token)) for token in tokens), initial=-added)
        return tokens, tuple(ends)[1:]

    def plain(self, text: str) -> tuple[int, ...]:
        """Tokens of `text` without what frames a prompt."""
        return tuple(self._tokenizer.encode(text, special=False))

    @property
    def opening(self) -> tuple[int, ...]:
        """The special tokens that a prompt begins with."""
        framed = tuple(self._tokenizer.encode("a"))
        begins = [token in self.special for token in framed]
        return framed[: begins.index(False)] if False in begins else ()

    def _of(self, token: int) -> bytes:
        known = self.bytes.get(token)
        return self.special.get(token, "").encode() if known is None else known


def _spell(vocabulary: Mapping[str, int]) -> dict[int, bytes]:
    """What each token stands for, special tokens' names as they are."""
    byte_level = sum("\u0120" in name for name in vocabulary)
    sentencepiece = sum(SPACE in name for name in vocabulary)
    if byte_level > sentencepiece:
        table = _alphabet()
        return {token: _from_alphabet(name, table) for name, token in vocabulary.items()}
    if sentencepiece:
        return {token: _from_sentencepiece(name) for name, token in vocabulary.items()}
    return {token: name.encode() for name, token in vocabulary.items()}


def _alphabet() -> dict[int, int]:
    """The byte that each character of the byte-level alphabet stands for (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {256 + n: byte for n, byte in enumerate(others)}


def _from_alphabet(name: str, table: Mapping[int, int]) -> bytes:
    """Tokens that were added later stand as plain text."""
    if all(ord(character) in table for character in name):
        return name.translate(table).encode("latin-1")
    return name.encode()


def _from_sentencepiece(name: str) -> bytes:
    lone = BYTE.fullmatch(name)
    return bytes([int(lone[1], 16)]) if lone else name.replace(SPACE, " ").encode()


def _left_out(tokenizer: Tokenizer, written: Mapping[int, bytes]) -> Iterator[int]:
    """The tokens that decode to nothing.

    Most groups of tokens decode to all that they stand for, so that few are decoded one by one:
    twice in a row, since SentencePiece strips the space from the beginning of a text.
    """
    tokens = sorted(written)
    for start in range(0, len(tokens), GROUP):
        group = tokens[start : start + GROUP]
        expected = b"".join(written[token] for token in group).decode(errors="replace")
        if tokenizer.decode(group) not in (expected, expected.removeprefix(" ")):
            yield from (token for token in group if not tokenizer.decode([token, token]))
