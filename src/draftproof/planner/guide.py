"""Whether another drafted token is worth its price: the renewal-reward rule over measured costs.

A round's tokens per second are what all rounds earn in the long run, lambda, where the draft is
extended as long as the expected tokens exceed what the time would earn otherwise:

    kept * a > lambda * (draft + t(n + 2) - t(n + 1))

with `kept` the chance that all n tokens so far are accepted and `a` that the next one is, given
that. Costs may come in steps, since kernels work in tiles, so the best of all continuations of one
to several tokens decides. A token already drawn stays in the draft, however unsure: whether it is
verified must not depend on what it turned out to be.

Where the target can score a tree, other candidates compete with the trunk for the rows of the pass.
What the round is expected to come to (`outlook`) is then one more continuation to weigh, and a
candidate beside the trunk pays for a row behind all that are planned, or takes the place of one.
With the same chances at every depth the draft that follows has the best rate of all trees of a
trunk and leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.planner.beliefs import Beliefs
from draftproof.planner.outlook import Outlook

_NONE = Outlook()
_KNOWN = 3.0  # tokens on which the chance of a single candidate has to rest
_CHEAP = "not worth another token's price"


@dataclass(frozen=True, slots=True)
class Prices:
    """What a round's tokens cost, and what time earns.

    Args:
        seconds: Of a round's pass with n drafted tokens, the decision with it, by n from 0.
        draft_seconds: Of a token that is not known before it is paid for, on average: what a draft
            model has to read behind others' tokens is paid sooner or later, and so by all alike.
        reads: Of a draft's pass that reads n tokens, in such passes that read one, by n from 1; a
            longer one goes on with the last step.
        rate: Emitted tokens per second in the long run.
        balance: What a round may lose if nothing is accepted, in plain passes.
    """

    seconds: Sequence[float]
    draft_seconds: float
    rate: float
    balance: float
    reads: Sequence[float] = (1.0,)

    def units(self, reads: int) -> float:
        """Passes over one token that a draft's pass over `reads` tokens is worth."""
        missing = max(reads - len(self.reads), 0)
        step = self.reads[-1] - self.reads[-2] if len(self.reads) > 1 else 0.0
        return self.reads[min(reads, len(self.reads)) - 1] + missing * max(step, 0.0)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was believed of a position where sets of candidates were weighed.

    Args:
        alone: The chance that a single token is kept.
        extra: How much more probably one of the second set is.
        gain: Tokens that the chosen set is worth more than a single token.
    """

    alone: float
    extra: float
    gain: float


class RoundGuide:
    """One round's guide.

    Args:
        prices: The costs.
        beliefs: What confidences mean.
        acceptance: The chance that a token is kept whose confidence is not known yet.
        most_paid: Tokens of unknown confidence that may be drafted.
        probe: How many of these are drafted whatever they are worth.
        branching: Whether the target can score a tree.
        closed: Why `most_paid` is 0, where it is.
        outlook: What the round is expected to come to, where it may become a tree.
        several: Whether drawn tokens may have others beside them in this round.
    """

    def __init__(
        self,
        prices: Prices,
        beliefs: Beliefs,
        acceptance: float,
        *,
        most_paid: int,
        probe: int = 0,
        branching: bool = False,
        closed: str = "",
        outlook: Outlook = _NONE,
        several: bool = False,
    ) -> None:
        self._prices = prices
        self._beliefs = beliefs
        self._acceptance = acceptance
        self._most_paid = most_paid
        self._probe = probe
        self._closed = closed
        self._outlook = outlook
        self._kept = [1.0]  # by node + 1: the chance that all up to it are accepted
        # By source: what a token was last asked for unseen at, in passes that read one; else 0.
        self._asked: dict[str, float] = {}
        self.branching = branching
        self.several = several
        self.stopped = ""
        self._end = self._before = -1  # the trunk's last token, and the one above it
        self._depth = 0  # of the trunk
        self.taken: list[tuple[str, float, bool]] = []  # source, confidence, whether unseen
        self.ranks: list[int | None] = []  # among the candidates at a trunk's depth; None elsewhere
        self.paid = 0
        self.units = 0.0  # what was paid, in the draft's passes that read one token
        self.weighed = False  # whether a token beside the trunk was
        self.sets: dict[int, Chosen] = {}  # by the token that was taken from them to go on behind

    @property
    def nodes(self) -> int:
        """Most tokens in the draft altogether."""
        return len(self._prices.seconds) - 1

    def value(
        self,
        source: str,
        confidence: float | None = None,
        after: int | None = None,
        reads: int = 1,
    ) -> float:
        """Expected tokens of the best continuation by `source`, less what its time would earn."""
        n, blind = len(self.taken), confidence is None
        self._asked[source] = self._prices.units(reads) if blind else 0.0
        if blind and self.paid >= self._most_paid:
            return self._no(self._closed or "the longest draft that may be tried")
        if blind and self.paid < self._probe:
            self.stopped = ""
            return 1.0
        price = self._prices.draft_seconds if blind else 0.0
        if not self._affordable(n + 1, price):
            return self._no("nothing more may be lost until speculation has gained")
        chance = self._acceptance if confidence is None else self._beliefs.rate(source, confidence)
        kept = self._kept[-1 if after is None else after + 1]
        if self.paid and after is not None and after != self._end:
            self.weighed = True
            best = self._beside(kept, chance, goes_on=after != self._before)
        else:
            best = self._chain(kept, chance, price, n)
        if blind:
            best = max(best, self._rest(kept))
        if best <= 0:
            return self._no(_CHEAP)
        self.stopped = ""
        return best

    def choose(self, options: Sequence[Sequence[tuple[str, float]]], after: int) -> tuple[int, int]:
        """The candidates that bring most, and the likeliest of them; the pass is paid for."""
        n, kept = len(self.taken), self._kept[after + 1]
        paid = self._asked.get(options[0][0][0], 1.0)  # as it was asked for
        behind = self._outlook.behind(self._depth + 1)
        found: list[tuple[float, int, int]] = []
        sums: list[float] = []
        known = self._beliefs.judged(*options[0][0]) >= _KNOWN
        price = self._prices.draft_seconds
        for index, option in enumerate(options):
            chances = [self._beliefs.rate(source, confidence) for source, confidence in option]
            sums.append(min(sum(chances), 1.0))
            if index and not (known and self._affordable(n + len(option), price)):
                continue
            lead = chances.index(max(chances))
            row = min(n + len(option) + self._outlook.rows(self._depth + 1), self.nodes)
            worth = kept * (sums[index] + chances[lead] * behind)
            found.append((worth - self._prices.rate * self._prices.seconds[row], -index, lead))
        worth, index, lead = max(found)
        extra = max(sums[1] - sums[0], 0.0) if len(sums) > 1 else 0.0
        self.sets[n] = Chosen(sums[0], extra, worth - found[0][0])
        for place, (source, _) in enumerate(options[-index]):
            self._asked[source] = paid if place == lead else 0.0
        return -index, lead

    def take(self, source: str, confidence: float, after: int | None = None) -> None:
        """Note a token, and how likely it and all before it are kept."""
        node = len(self.taken)
        after = node - 1 if after is None else after
        self._kept.append(self._kept[after + 1] * self._beliefs.rate(source, confidence))
        units = self._asked.get(source, 0.0)
        self.taken.append((source, confidence, units > 0))
        self.paid += units > 0
        self.units += units
        self.ranks.append(self._rank(after))
        if after == self._end:
            self._before, self._end, self._depth = after, node, self._depth + 1

    def _rank(self, after: int) -> int | None:
        """Of the next token: 0 on the trunk, and from 1 on beside its last one."""
        if after == self._end:
            return 0
        return len(self.taken) - 1 - self._end if after == self._before else None

    def _beside(self, kept: float, chance: float, goes_on: bool) -> float:
        """A free token beside the trunk: it takes a row behind the planned ones, or one of them.

        Whether anything may follow it is known only in a branch that `goes_on`.
        """
        n = len(self.taken)
        here = self._outlook.widths[self._depth - 1 : self._depth] or (0,)
        missing = max(here[0] - (n - self._end) - 1, 0)
        planned = self._outlook.rows(self._depth) + missing
        best = -1.0
        if n + planned < self.nodes:
            rows = self.nodes if goes_on else 1
            best = self._chain(kept, chance, 0.0, n + planned, rows)
        if planned:
            least = self._kept[self._end + 1] * self._outlook.least(self._depth)
            best = max(best, kept * chance - least)
        return best

    def _chain(
        self, kept: float, chance: float, price: float, n: int, most: int | None = None
    ) -> float:
        """The best of one to `most` more tokens, where n are drafted and those above are `kept`."""
        best, tokens = -1.0, 0.0
        seconds = self._prices.seconds
        for more in range(1, min(self.nodes - n, most or self.nodes) + 1):
            kept *= chance
            tokens += kept
            spent = seconds[n + more] - seconds[n] + more * price
            best = max(best, tokens - self._prices.rate * spent)
        return best

    def _rest(self, kept: float) -> float:
        """What the rest of the outlook is worth."""
        n, rows = len(self.taken), self._outlook.rows(self._depth)
        if not rows or n + rows > self.nodes:
            return -1.0
        seconds, levels = self._prices.seconds, len(self._outlook.widths) - self._depth
        spent = seconds[n + rows] - seconds[n] + levels * self._prices.draft_seconds
        return kept * self._outlook.behind(self._depth) - self._prices.rate * spent

    def _affordable(self, drafted: int, price: float) -> bool:
        """Whether so many tokens could all be lost; a probe's were counted before."""
        if drafted >= len(self._prices.seconds):
            return False
        spent = self._prices.seconds[drafted] + self.paid * self._prices.draft_seconds + price
        return spent / self._prices.seconds[0] - 1 <= self._prices.balance

    def _no(self, why: str) -> float:
        self.stopped = why
        return -1.0
