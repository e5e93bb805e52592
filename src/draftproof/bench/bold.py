"""Drafts that take every token there is, whatever it is worth, and branch wherever they may.

What `auto` drafts depends on the clock; a test of what becomes of trees has to meet some.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Prompt, Round
from draftproof.drafters.unguided import Unguided
from draftproof.ports import LengthPolicy

NODES = 8


class BoldGuide(Unguided):
    """Goes on up to `NODES` tokens, in a tree where it may branch."""

    nodes = NODES

    def __init__(self, branching: bool) -> None:
        self.branching = self.several = branching
        self._taken = 0

    def value(
        self,
        source: str,
        confidence: float | None = None,
        after: int | None = None,
        reads: int = 1,
    ) -> float:
        """Worth it until there are enough, and the surer the better."""
        return super().value(source, confidence, after) if self._taken < self.nodes else -1.0

    def choose(self, options: Sequence[Sequence[tuple[str, float]]], after: int) -> tuple[int, int]:
        """The most candidates that there is room for, and on behind the first of them."""
        room = self.nodes - self._taken
        sizes = [len(option) if len(option) <= room else 0 for option in options]
        return sizes.index(max(sizes)), 0

    def take(self, source: str, confidence: float, after: int | None = None) -> None:
        """Count."""
        self._taken += 1


class Bold:
    """The lengths, and any request's policy: `BoldGuide` where the target can score trees.

    Args:
        length: Most tokens in a row where no guide is asked.
    """

    reasons: tuple[str, ...] = ()

    def __init__(self, length: int) -> None:
        self._length = length

    def begin(self, prompt: Prompt, reproducible: bool = False) -> LengthPolicy:
        """The same for every request."""
        return self

    def length(self) -> int:
        """Most tokens in a row."""
        return self._length

    def guide(self, branching: bool, room: int, unread: float) -> BoldGuide:
        """A new one for each round."""
        return BoldGuide(branching)

    def observe(self, round: Round) -> None:
        """Nothing to learn."""
