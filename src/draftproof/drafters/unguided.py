"""A guide that lets every draft go on: what `draft` means by `follow`."""

from __future__ import annotations

import sys


class Unguided:
    """As many tokens as the limit allows, in a chain."""

    nodes = sys.maxsize
    branching = False
    stopped = ""

    def value(
        self, source: str, confidence: float | None = None, after: int | None = None
    ) -> float:
        """Always worth it, and the surer the better; what is not known yet comes last."""
        return 1.0 if confidence is None else 1.0 + confidence

    def take(self, source: str, confidence: float, after: int | None = None) -> None:
        """Nothing to note."""


UNGUIDED = Unguided()
