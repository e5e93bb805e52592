"""What closed sessions had cached, for sessions over texts that begin as theirs did."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

from draftproof.core import shared_length


class Remembered:
    """Sequences of an engine and of its first layers, the latest last; requests may share it."""

    def __init__(self) -> None:
        self.most = 0  # of each engine
        self._kept: list[tuple[Any, tuple[int, ...], Any]] = []  # engine, tokens, sequence
        self._lock = Lock()

    def remember(self, most: int) -> None:
        """Keep at most so many of each engine from now on."""
        with self._lock:
            self.most = most
            self._forget_old()

    def put(self, engine: Any, tokens: Sequence[int], sequence: Any) -> None:
        """Keep a sequence, which nothing else uses any more, and forget the oldest beyond `most`.

        Args:
            engine: Whose it is.
            tokens: What it has cached.
            sequence: The engine's part of the session; no tree is open in it.
        """
        if not tokens:
            return
        with self._lock:
            self._kept.append((engine, tuple(tokens), sequence))
            self._forget_old()

    def take(self, engine: Any, text: Sequence[int]) -> tuple[int, Any] | None:
        """The sequence that shares the longest beginning with `text`, no longer kept.

        Returns:
            How many tokens they share, and the sequence; None where none shares any.
        """
        with self._lock:
            of_engine = [item for item in self._kept if item[0] is engine]
            shares = [shared_length(tokens, text) for _, tokens, _ in of_engine]
            if not any(shares):
                return None
            longest = max(shares)
            item = of_engine[shares.index(longest)]
            self._kept = [other for other in self._kept if other is not item]
            return longest, item[2]

    def clear(self) -> bool:
        """Forget all, where memory is short; whether there were any."""
        with self._lock:
            kept, self._kept = self._kept, []
            return bool(kept)

    def _forget_old(self) -> None:
        left: list[tuple[Any, tuple[int, ...], Any]] = []
        for item in reversed(self._kept):
            if sum(other[0] is item[0] for other in left) < self.most:
                left.append(item)
        self._kept = left[::-1]
