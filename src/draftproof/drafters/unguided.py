"""A guide that lets every draft go on: what `draft` means by `follow`.

Where drafters compete, it takes a token that is surer than `UNSEEN` before one that nobody has seen
yet, as a model's is before its pass.
"""

from __future__ import annotations

import sys

UNSEEN = 0.8


class Unguided:
    """As many tokens as the limit allows, in a chain."""

    nodes = sys.maxsize
    branching = False
    stopped = ""

    def value(
        self, source: str, confidence: float | None = None, after: int | None = None
    ) -> float:
        """Always worth it, and the surer the better."""
        return UNSEEN if confidence is None else 1e-9 + confidence

    def take(self, source: str, confidence: float, after: int | None = None) -> None:
        """Nothing to note."""


UNGUIDED = Unguided()
