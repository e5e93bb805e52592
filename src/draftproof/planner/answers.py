"""How much of an answer is still to come, by how long earlier answers were.

What has to be paid once in a request, such as a draft model's reading of the prompt, pays if enough
tokens follow. How many do is not known; but of answers that got so far, it is known how many ended
before they were twice as long. Where nothing is known yet, a quarter does.
"""

from __future__ import annotations

import math
from threading import Lock
from typing import TypeAlias

FIRST = 8  # tokens of the first span; each further one ends at twice the length
SPANS = 16
_GOES_ON = 0.75  # of the answers that reach a span, how many leave it: assumed,
_WEIGHT = 1.0  # for as much as so many answers tell
_KEEP = 0.85  # what an answer leaves of older ones, in the spans that it tells of

# By span: how many answers left it, and of how many that ended there or left it.
Spans: TypeAlias = tuple[tuple[float, float], ...]


class Answers:
    """Counts of answers by length; requests in threads of their own may share them.

    Args:
        known: The counts to begin with.
    """

    def __init__(self, known: Spans | None = None) -> None:
        self._spans = [list(pair) for pair in known or ((0.0, 0.0),) * SPANS]
        self._lock = Lock()

    @property
    def counts(self) -> Spans:
        """What was counted so far."""
        with self._lock:
            return tuple((left, reached) for left, reached in self._spans)

    @property
    def known(self) -> bool:
        """Whether any answer was counted."""
        return any(reached for _, reached in self.counts)

    def learn(self, length: int, ended: bool) -> None:
        """Count an answer.

        Args:
            length: Its tokens.
            ended: Whether it came to its end there. One that was cut off tells only of the spans
                that it left.
        """
        with self._lock:
            for span, (low, high) in enumerate(_bounds()):
                if length < low or (length < high and not ended):
                    break
                left, reached = self._spans[span]
                self._spans[span] = [_KEEP * left + (length >= high), _KEEP * reached + 1]

    def ahead(self, written: int, room: int) -> float:
        """Expected tokens of an answer behind those that are written.

        Args:
            written: Tokens so far.
            room: Most tokens that may follow.
        """
        expected = 0.0
        for tokens, survives in reversed(self._spans_ahead(written, room)):
            expected = tokens + survives * expected
        return expected

    def pays(self, written: int, room: int, gain: float, price: float) -> bool:
        """Whether something that has to be paid once is to be paid now.

        Not where it may better be paid at the end of this span, by those answers alone that get
        there: the optimal stopping rule over the ends of spans.

        Args:
            written: Tokens so far.
            room: Most tokens that may follow.
            gain: How much sooner each token behind it is made, in any unit of time.
            price: What is paid, in the same.
        """
        expected = value = now = later = 0.0
        for tokens, survives in reversed(self._spans_ahead(written, room)):
            expected = tokens + survives * expected
            now, later = gain * expected - price, survives * value
            value = max(now, later, 0.0)
        return now >= max(later, 0.0)

    def _spans_ahead(self, written: int, room: int) -> list[tuple[float, float]]:
        """Of each span, or what is left of it: its expected tokens, and how many answers leave it.

        Both of the answers that get there.
        """
        ahead = []
        for (low, high), (left, reached) in zip(_bounds(), self.counts, strict=True):
            first, last = max(low, written), min(high, written + room)
            if first < last:
                rate = (left + _WEIGHT * _GOES_ON) / (reached + _WEIGHT)
                survives = rate ** _part(first, last, low, high)
                ahead.append(((last - first) * (1 + survives) / 2, survives))
        return ahead


def _bounds() -> list[tuple[int, float]]:
    """Where spans begin, and before which length they end; the last has no end."""
    starts = [0, *(FIRST << span for span in range(SPANS - 1))]
    return list(zip(starts, [*starts[1:], math.inf], strict=True))


def _part(first: int, last: float, low: int, high: float) -> float:
    """How much of a span lies from `first` to `last`, by lengths' logarithms."""
    if low == 0:
        return (last - first) / high
    return math.log(last / first) / math.log(2)
