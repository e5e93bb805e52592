"""What one request's drafts may still lose, so that speculation is never wrong for long.

In plain passes. It starts at `START`, and up to as much again where earlier requests have gained
that; but, once answers were counted, at most at `SHARE` of the tokens that are to be expected, up
to half as much again where that was gained, or at what a single token may lose. Every emitted token
adds `RATE`, a round with a draft also what its tokens would have cost plainly less what it did
cost, one without a draft takes the search for one, and `CAP` bounds it, so that old gains cannot
pay for long losses.

What plain rounds cost is what the latest of them took: at the next one, what rounds in between have
lost is settled. A stall of the machine that stands alone counts in part.

A draft whose worst case (nothing accepted) is more than half the balance is not made, unless it is
the shortest that pays at all: so one bad draft does not end what pays on the whole. And none is
made whose worst case is more than the balance: so speculation can lose `START` plain passes, or
twice as many of those that it has gained, and `RATE` of plain time, and no more, as far as the
costs are known; less in a short answer.
"""

from __future__ import annotations

import math

from draftproof.core import Round
from draftproof.planner.running import MOST_GAINED

START = 2.0
SHARE = 0.03
RATE = 0.015
CAP = MOST_GAINED

_STALL = 1.5  # a round that took longer than so many times its cost met a stall of the machine


class Balance:
    """One request's: `passes` is what is left, and `lost` how far it is behind plain decoding.

    Args:
        gained: By earlier requests, in plain passes.
    """

    def __init__(self, gained: float) -> None:
        self._gained = max(gained, 0.0)
        self.passes = START + min(self._gained, START)
        self.lost = 0.0
        self._unsettled = 0.0  # plain passes that drafts have taken since the last plain round
        self._stalled = False  # whether the last round took far longer than it should

    def limit(self, tokens: float, worst: float) -> None:
        """Before the first round: risk no more than an answer is worth.

        Args:
            tokens: That are to be expected of it.
            worst: What a single drafted token may lose.
        """
        share = SHARE * tokens
        self.passes = min(self.passes, max(share + min(self._gained, share / 2), worst))

    def risk(self, worst: float) -> float:
        """Most plain passes that the next draft may lose.

        Args:
            worst: What the shortest one that pays may lose.
        """
        return max(self.passes / 2, min(self.passes, worst))

    def spent(self, round: Round, due: float) -> float:
        """The round's seconds; a stall that stands alone counts as far as it may be a cost.

        Args:
            round: The latest, asked for once.
            due: Seconds that it should have taken.
        """
        most = _STALL * due
        alone, self._stalled = not self._stalled, round.seconds > most
        return most if self._stalled and alone else round.seconds

    def observe(self, round: Round, lost: float, slower: float) -> float:
        """Take in a round.

        Args:
            round: What happened.
            lost: Plain passes that it took; of one without a draft, that the search took.
            slower: How many times what a plain pass was believed to take before the round it is
                believed to take now.

        Returns:
            What was gained over plain decoding, in plain passes.
        """
        gained = round.emitted - lost if round.drafted else -lost
        gained += self._settled(round, lost, slower)
        self.lost -= gained
        self.passes = min(self.passes + round.emitted * RATE + gained, CAP)
        return gained

    def _settled(self, round: Round, lost: float, slower: float) -> float:
        """What rounds with drafts are found to have lost too much or too little.

        Their plain passes were those of the last plain round. With the next one the machine may
        turn out to have been slower, or faster, in between.
        """
        if round.drafted and not round.others:
            self._unsettled += lost
            return 0.0
        unsettled, self._unsettled = self._unsettled, 0.0
        return 0.0 if round.others else unsettled * (1 - math.sqrt(1 / slower))
