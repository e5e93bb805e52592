"""What a round is expected to come to before anything of it is known.

A drafter pays for a trunk, a token at a time, and may put further candidates beside each of its
tokens. How deep and how wide that pays best follows from the running acceptance of the candidates
by rank and the measured costs, by the programme of `shape`. A guide goes by it where what it weighs
hangs on what is still to come: a row that goes to a leaf now is not there for the trunk later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from draftproof.planner.shape import best_tree


@dataclass(frozen=True)
class Outlook:
    """A trunk and the candidates beside it.

    Args:
        widths: Candidates at each depth, the trunk's own token with them.
        chances: By rank, how probably a candidate is the one kept where the one above it was.
        rate: Emitted tokens per second of a round that goes so.
    """

    widths: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    rate: float = 0.0

    def rows(self, depth: int) -> int:
        """Candidates from `depth` on, counted from 0."""
        return sum(self.widths[depth:])

    def behind(self, depth: int) -> float:
        """Expected tokens from `depth` on, where all above it are kept."""
        return self._behind[depth] if depth < len(self.widths) else 0.0

    def least(self, depth: int) -> float:
        """The same of the candidate that could best be done without; 0 where there is none."""
        found: list[float] = []
        above = 1.0
        for place, width in enumerate(self.widths[depth:], depth):
            if width > 1 or place + 1 == len(self.widths):
                found.append(above * self.chances[width - 1])
            above *= self.chances[0]
        return min(found, default=0.0)

    @cached_property
    def _behind(self) -> tuple[float, ...]:
        worths = [0.0]
        for width in reversed(self.widths):
            worths.append(sum(self.chances[:width]) + self.chances[0] * worths[-1])
        return tuple(reversed(worths))


def outlook(
    chances: Sequence[float], seconds: Sequence[float], draft_seconds: float, depth: int
) -> Outlook:
    """The trunk and candidates of the most emitted tokens per second; none where none pays.

    Args:
        chances: As in `Outlook`.
        seconds: Of a round's pass with n drafted tokens, by n from 0.
        draft_seconds: Of a token of the trunk.
        depth: Most tokens on the trunk.
    """
    if len(seconds) < 2 or depth < 1:
        return Outlook()
    shape = best_tree(
        chances, len(seconds) - 1, depth, lambda n: seconds[n - 1], draft_seconds, trunk=True
    )
    depths: list[int] = []
    for parent in shape.parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    widths = tuple(depths.count(d) for d in range(shape.depth))
    spent = seconds[len(shape)] + shape.depth * draft_seconds
    return Outlook(widths, tuple(chances), float(shape.expected) / spent)
