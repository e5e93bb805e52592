"""Token ids to text, one id at a time."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.ports import Tokenizer

BROKEN = "\ufffd"  # what decoders put for bytes that are no character, or not one yet
CONTEXT = 16  # ids of the prompt that are kept
TAIL = 8  # ids that surely hold the last character, which has at most 4 bytes


class Detokenizer:
    """The text of a growing sequence of ids, in pieces that never change afterwards.

    Joined, the pieces of `push` and `flush` are the tokenizer's text of all ids. Where the last
    character is not complete, an id gives "" and its text comes with the id that completes it.

    What an id adds is the difference that it makes to the text of the ids before it. Only the last
    few are decoded again: those of the previous piece, which keep the space that SentencePiece
    decoders strip from the beginning of a text, and those whose text is due. Bytes that
    SentencePiece spells as `<0xE4>` wait until the run of them ends: one bad byte in it turns all
    of the run into replacement characters.

    Args:
        tokenizer: Decodes; without cleaning up spaces, which would change earlier text.
        before: Ids that precede, whose text is not repeated.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._decode = tokenizer.decode
        vocabulary = tokenizer.vocabulary
        self._bytes = frozenset(vocabulary.get(f"<0x{byte:02X}>", -1) for byte in range(256))
        self._context = list(before[-CONTEXT:])
        self._due: list[int] = []
        text = self._decode(self._context)
        self._shown = len(text.rstrip(BROKEN))  # characters of the context's text
        self._in_bytes = False

    def push(self, token: int) -> str:
        """The text that became final with this id; "" where it is not complete."""
        self._due.append(token)
        if token in self._bytes:
            self._in_bytes = True
            return ""
        ids = [*self._context, *self._due]
        tail = self._decode(ids[-TAIL:])
        if tail.endswith(BROKEN):
            return ""
        text = tail if len(ids) <= TAIL else self._decode(ids)
        if self._in_bytes and text == self._decode([*self._context, *self._due[:-1]]):
            self._due.pop()  # a special token, which decoders leave out, does not end the run
            return ""
        piece = text[self._shown :]
        if text.endswith(BROKEN):
            return ""
        if piece:
            self._in_bytes = False
            self._context, self._due = self._due, []
            self._shown = len(self._decode(self._context))
        elif self._shown:
            self._due.clear()
        return piece

    def flush(self) -> str:
        """The rest, at the end: what is incomplete becomes U+FFFD."""
        if not self._due:
            return ""
        piece = self._decode([*self._context, *self._due])[self._shown :]
        self._due = []
        return piece
