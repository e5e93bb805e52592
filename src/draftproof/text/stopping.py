"""Stop strings, found in a stream of tokens and their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftproof.core import Token
from draftproof.errors import InvalidSetting


class Stopper:
    """Holds tokens back while their text may belong to a stop string, and cuts where one ends.

    The stop string that is *complete first* counts, so that the output depends on the text alone
    and not on how tokens split it; of several that end together, the longest. On a stop

    - the text ends right before the stop string;
    - the tokens end with the last one that has a part in that text, cut to its part. Tokens of the
      stop string go, and so do tokens without text right before it: they may hold its first bytes.

    A token without text waits for the next text in any case, since the text it began may follow.
    Only held text is searched, which is shorter than the longest stop string and one token.

    Args:
        stops: The stop strings; none is fine.

    Raises:
        InvalidSetting: A stop string is empty.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if not all(stops):
            raise InvalidSetting(
                "a stop string is empty",
                why="every text contains it, so nothing could be generated",
                remedy="leave empty strings out of `stop`",
            )
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._held: list[tuple[Token, str]] = []
        self._text = ""  # of the held tokens
        self._active = True
        self.stopped: str | None = None

    def push(self, token: Token, piece: str, active: bool = True) -> list[Token]:
        """Take a token and the text that became final with it.

        Args:
            token: The token; its `text` is not read.
            piece: The text, possibly "".
            active: Whether stop strings that end in this piece count.

        Returns:
            The tokens that nothing can change any more, with their text.
        """
        self._active = active
        self._held.append((token, piece))
        return self._extend(piece)

    def finish(self, tail: str = "") -> list[Token]:
        """Take the text that remained at the end, as the last token's, and release everything.

        Args:
            tail: What `Detokenizer.flush` gave; only a token without text leaves any.
        """
        released: list[Token] = []
        if tail:
            token, piece = self._held.pop()
            self._held.append((token, piece + tail))
            released = self._extend(tail)
        if self.stopped is None:
            released += [replace(token, text=piece) for token, piece in self._held]
            self._held = []
            self._text = ""
        return released

    def _extend(self, piece: str) -> list[Token]:
        before = len(self._text)
        self._text += piece
        found = self._first(before) if self._active else None
        if found is None:
            return self._release(len(self._text) - self._may_belong(), cut=False)
        start, self.stopped = found
        return self._release(start, cut=True)

    def _first(self, before: int) -> tuple[int, str] | None:
        """Start and string of the stop that is complete first behind `before` characters."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = self._text.find(stop, max(0, before - len(stop) + 1))
            end = start + len(stop)
            if start >= 0 and (best is None or end < best[0]):
                best = end, start, stop
        return None if best is None else best[1:]

    def _may_belong(self) -> int:
        """Length of the longest end of the text that begins some stop string."""
        longest = 0
        for stop in self._stops:
            for n in range(min(len(stop) - 1, len(self._text)), longest, -1):
                if self._text.endswith(stop[:n]):
                    longest = n
                    break
        return longest

    def _release(self, end: int, cut: bool) -> list[Token]:
        """Release the tokens with text before `end`; the one across it only if it is `cut`."""
        offset, count = 0, 0
        released: list[Token] = []
        for token, piece in self._held:
            visible = piece[: max(0, end - offset)]
            offset += len(piece)
            if offset > end and not cut:
                break
            released.append(replace(token, text=visible))
            if visible:
                count = len(released)
        if cut:
            self._held = []
            self._text = ""
        else:
            self._text = self._text[sum(len(token.text) for token in released[:count]) :]
            self._held = self._held[count:]
        return released[:count]
