"""A guide that lets every draft go on: what `draft` means by `follow`.

Where drafters compete, it takes a token that is surer than `UNSEEN` before one that nobody has seen
yet, as a model's is before its pass.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

UNSEEN = 0.8


class Unguided:
    """As many tokens as the limit allows, in a chain."""

    nodes = sys.maxsize
    branching = several = False
    stopped = ""

    def value(
        self,
        source: str,
        confidence: float | None = None,
        after: int | None = None,
        reads: int = 1,
    ) -> float:
        """Always worth it, and the surer the better."""
        return UNSEEN if confidence is None else 1e-9 + confidence

    def choose(self, options: Sequence[Sequence[tuple[str, float]]], after: int) -> tuple[int, int]:
        """The first: a chain."""
        return 0, 0

    def take(self, source: str, confidence: float, after: int | None = None) -> None:
        """Nothing to note."""


UNGUIDED = Unguided()
