"""What a request learns of trees: how often candidates beside a trunk are kept, and what they gain.

Where the target's choice is compared with certain candidates, those beside the trunk change nothing
for it, and each is weighed as it comes. Their shares of kept tokens by rank give the outlook.

Where tokens are drawn, candidates beside one change the law that it is drawn from, and another rule
judges the round, so that a round is either meant to have them or not, before anything is drawn. It
is where the rounds that were meant to gained clearly, by what was believed of every candidate. They
are tried every now and then, at first once it is known how a single token fares.
"""

from __future__ import annotations

from draftproof.core import Round
from draftproof.planner.beliefs import Beliefs
from draftproof.planner.guide import RoundGuide
from draftproof.planner.outlook import Outlook, outlook
from draftproof.planner.running import RunningCosts

_ASSUMED = (0.2, 0.1)  # of the second and the third candidate at a position
_DEEPEST = 8  # tokens on the trunk of an outlook
_REPLAN = 8  # rounds between two outlooks: they change slowly, and take a millisecond to find
_FIRST = 4  # rounds with drawn chains before the first tree
_TRY = 24  # rounds between two trees, while chains are better
_ROW = 6  # trees in a row: single tokens have to stay known, too
_KEEP = 0.9  # what a round leaves of what older ones gained
# What the gain has to exceed, as a share of the tokens: what the block rule would add to a chain's,
# and what the best of several uncertain beliefs is believed too much.
_MARGIN = 0.05


class Forks:
    """One request's.

    Args:
        beliefs: Where the shares of kept candidates are kept.
    """

    def __init__(self, beliefs: Beliefs) -> None:
        self._beliefs = beliefs
        self._leaves = False  # whether candidates beside the trunk were weighed one by one
        self._gain: float | None = None  # tokens that sets of candidates gain in a round
        self._extra = 0.0  # how much more probably one of two candidates is kept than a single one
        self._since = 0  # rounds with drafts that were paid for, since the last with such sets
        self._row = 0  # rounds with such sets, since the last without
        self._found = Outlook()
        self._due: tuple[bool, int] | None = None  # what `_found` is for: several, and until when

    def several(self) -> bool:
        """Whether drawn tokens may have candidates beside them in the next round."""
        if self._gain is None:
            return self._since >= _FIRST
        return self._row < _ROW if self._gain > 0 else self._since >= _TRY

    def ahead(self, acceptance: float, costs: RunningCosts, limit: int, rounds: int) -> Outlook:
        """What the next round is expected to come to; nothing where no candidates are weighed.

        Args:
            acceptance: Of the trunk's tokens.
            costs: What rounds cost.
            limit: Most tokens on a trunk.
            rounds: That were played.
        """
        several = self.several()
        if not (self._leaves or several):
            return Outlook()
        if self._due is None or self._due[0] != several or rounds >= self._due[1]:
            chances = [acceptance]
            for chance in self._beside():
                chances.append(min(chance, 1 - sum(chances)))
            depth = min(limit, _DEEPEST)
            self._found = outlook(chances, costs.seconds, costs.draft_seconds, depth)
            self._due = several, rounds + _REPLAN
        return self._found

    def _beside(self) -> list[float]:
        """Chances of the candidates beside the trunk, by rank."""
        if not self._leaves:
            return [self._extra]
        return [self._beliefs.rate(_place(i + 1), p) for i, p in enumerate(_ASSUMED)]

    def observe(self, round: Round, guide: RoundGuide) -> None:
        """Learn from a round whose tokens were paid for."""
        self._since = 0 if guide.sets else self._since + 1
        self._row = self._row + 1 if guide.sets else 0
        if guide.sets:
            gained = sum(one.gain for one in guide.sets.values())
            gained -= _MARGIN * round.emitted
            before = gained if self._gain is None else self._gain
            self._gain = _KEEP * before + (1 - _KEEP) * gained
            extra = sum(one.extra for one in guide.sets.values()) / len(guide.sets)
            self._extra = _KEEP * self._extra + (1 - _KEEP) * extra
            return
        self._leaves = self._leaves or guide.weighed
        for rank, guess in zip(guide.ranks, round.guesses, strict=True):
            if rank and rank <= len(_ASSUMED) and guess.p is not None:
                self._beliefs.learn(_place(rank), _ASSUMED[rank - 1], guess.kept)


def _place(rank: int) -> str:
    """What beliefs call the candidates of a rank, whoever drafted them."""
    return f"candidate {rank + 1} at a position"
