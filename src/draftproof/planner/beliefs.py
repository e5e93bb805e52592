"""What a drafter's confidence has meant: the share of tokens kept, by source and by confidence.

A source's confidence is a number in [0, 1] on a scale of its own. It is taken at its word at first,
and each drafted token that was judged corrects the bin that it falls in: a token behind a rejected
one was not judged and teaches nothing. A request starts from what earlier ones taught, weighed down
so that its own text soon counts for more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from threading import Lock
from typing import TypeAlias

_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
BINS = len(_EDGES) + 1
_TRUST = 2.0  # tokens that a confidence taken at its word counts for
_CARRIED = 12.0  # most tokens of earlier requests that count, in a bin
_KEEP = 0.97  # what a token leaves of the older counts of its bin

# Of one source, by bin: how many tokens were kept, and of how many that were judged.
Counts: TypeAlias = tuple[tuple[float, float], ...]


class Beliefs:
    """Counts by source and confidence; requests in threads of their own may share one.

    Args:
        parent: What earlier requests taught. It learns all that this one does.
        known: The counts to begin with, by source.
    """

    def __init__(
        self, parent: Beliefs | None = None, known: Mapping[str, Counts] | None = None
    ) -> None:
        self._parent = parent
        self._lock = Lock()
        self._counts: dict[str, list[list[float]]] = {
            source: [list(pair) for pair in counts] for source, counts in (known or {}).items()
        }

    @property
    def counts(self) -> dict[str, Counts]:
        """What was counted so far, by source."""
        with self._lock:
            return {
                source: tuple((bin[0], bin[1]) if bin else (0.0, 0.0) for bin in bins)
                for source, bins in self._counts.items()
            }

    def rate(self, source: str, confidence: float) -> float:
        """The chance that a token of this confidence is kept where those before it were."""
        kept, judged = self._bin(source, bisect_right(_EDGES, confidence))
        return (kept + _TRUST * confidence) / (judged + _TRUST)

    def judged(self, source: str, confidence: float) -> float:
        """How many tokens of this confidence that rests on, older ones counting less."""
        return self._bin(source, bisect_right(_EDGES, confidence))[1]

    def learn(self, source: str, confidence: float, kept: bool) -> None:
        """Count a token that was judged."""
        index = bisect_right(_EDGES, confidence)
        counts = self._bin(source, index)
        with self._lock:
            counts[0] = _KEEP * counts[0] + kept
            counts[1] = _KEEP * counts[1] + 1
        if self._parent is not None:
            self._parent.learn(source, confidence, kept)

    def _bin(self, source: str, index: int) -> list[float]:
        with self._lock:
            bins = self._counts.setdefault(source, [[] for _ in range(BINS)])
            if not bins[index]:
                bins[index] = [0.0, 0.0]
                if self._parent is not None:
                    kept, judged = self._parent._bin(source, index)
                    scale = min(1.0, _CARRIED / judged) if judged else 0.0
                    bins[index] = [kept * scale, judged * scale]
            return bins[index]
