"""Text that grows token by token in one vocabulary, as the tokens of another.

Only the end of the text is tokenised again as it grows, and the new tokens are joined to the old
ones where both have a boundary: tokens further back do not depend on what follows.
"""

from __future__ import annotations

import codecs
import copy
from collections.abc import Mapping, Sequence

from draftproof.text.spelling import Spelling

WINDOW = 32  # tokens at the end that are made anew
TAIL = 16  # tokens before a continuation that may shape its first tokens


class Retokenizer:
    """What a reader with another tokenizer sees of a text.

    Args:
        source: Spells the tokens that come in.
        reader: Spells those that the reader sees.
        specials: Special tokens of the source as the reader's; others are passed over.
    """

    def __init__(self, source: Spelling, reader: Spelling, specials: Mapping[int, int]) -> None:
        self._source, self._reader, self._specials = source, reader, specials
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._prefixed = source.spell(source.plain("a")) == b" a"  # as SentencePiece begins texts
        self._opening = list(reader.opening)
        self._begin(self._opening)
        self.read = 0  # tokens of the source so far

    def _begin(self, before: Sequence[int]) -> None:
        """Begin a text of its own behind `before`."""
        self.ids = list(before)
        self._base = len(self.ids)  # where the text's tokens begin
        self._text = b""
        self._ends: list[int] = []  # where in the text each of its tokens ends

    @property
    def whole(self) -> bool:
        """Whether the text ends with a whole character: the bytes of a part are held back."""
        return not self._decoder.getstate()[0]

    def fork(self) -> Retokenizer:
        """Another that has read the same text, to read on alone."""
        fork = copy.copy(self)
        fork._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        fork._decoder.setstate(self._decoder.getstate())
        fork.ids, fork._ends = list(self.ids), list(self._ends)
        return fork

    def extend(self, tokens: Sequence[int]) -> None:
        """Read on."""
        self.read += len(tokens)
        new = b""
        for token in tokens:
            if token not in self._source.special:
                new += self._source.spell([token])
            elif token in self._specials:
                self._add(new, final=True)
                new = b""
                if self.ids != self._opening or self._specials[token] not in self._opening:
                    self._begin([*self.ids, self._specials[token]])
        self._add(new)

    def _add(self, new: bytes, final: bool = False) -> None:
        """Add to the text and tokenise its end again."""
        text = self._decoder.decode(new, final).encode()
        if final:
            self._decoder.reset()
        if not text:
            return
        first = not self._text and self._prefixed
        self._text += text.removeprefix(b" ") if first else text
        if not self._renew_end():
            self._renew_all()

    def _renew_end(self) -> bool:
        """Tokenise the end of the text again; False where new and old tokens have no boundary."""
        first = len(self._ends) - WINDOW
        if first <= 0:
            return False
        start = self._ends[first - 1]
        while self._text[start] & 0xC0 == 0x80:  # inside of a character
            start -= 1
        renewed = self._reader.encode(self._text[start:].decode())
        if renewed is None:
            return False
        tokens, ends = renewed
        middle = first + WINDOW // 2  # as far from the beginning, where a word may have been cut
        old = {end: at for at, end in enumerate(self._ends[middle:], middle)}
        for at, end in enumerate(ends):
            if start + end in old:
                keep = old[start + end] + 1
                del self._ends[keep:], self.ids[self._base + keep :]
                self._ends.extend(start + end for end in ends[at + 1 :])
                self.ids.extend(tokens[at + 1 :])
                return True
        return False

    def _renew_all(self) -> None:
        text = self._text.decode()
        found = self._reader.encode(text)
        tokens, ends = (self._reader.plain(text), ()) if found is None else found
        self.ids[self._base :] = tokens
        self._ends = list(ends)


def continuation(spelling: Spelling, before: Sequence[int], text: str) -> tuple[int, ...]:
    """The tokens that `text` becomes behind the tokens `before`, which stay as they are.

    Args:
        spelling: Of both.
        before: Tokens whose text ends with a whole character.
        text: What follows.

    Returns:
        No tokens where the tokenizer does not spell the text.
    """
    tail: list[int] = []
    for token in reversed(before[-TAIL:]):
        if token in spelling.special:
            break
        tail.append(token)
    data = spelling.spell(tail[::-1])
    while data and data[0] & 0xC0 == 0x80:  # the rest of a character that began further back
        data = data[1:]
    start = data.decode(errors="replace")
    if not start:
        found = spelling.encode(text)
        return () if found is None else found[0]
    # Where the tokens before would become others, the text is cut as if it stood alone: the target
    # has chosen them, and must go on.
    cuts = (_behind(spelling, begin, text) for begin in (start, "\n", ""))
    return next((tokens for tokens in cuts if tokens is not None), ())


def _behind(spelling: Spelling, start: str, text: str) -> tuple[int, ...] | None:
    """The tokens of `text` behind `start`; None where none begins there."""
    found = spelling.encode(start + text)
    if found is None:
        return None
    tokens, ends = found
    end = len(start.encode())
    if end == 0 and spelling.spell(tokens) == text.encode():
        return tokens
    return tokens[ends.index(end) + 1 :] if end in ends else None
