"""Whether another drafted token is worth its price: the renewal-reward rule over measured costs.

A round's tokens per second are what all rounds earn in the long run, lambda, where the draft is
extended as long as the expected tokens exceed what the time would earn otherwise:

    kept * a > lambda * (draft + t(n + 2) - t(n + 1))

with `kept` the chance that all n tokens so far are accepted and `a` that the next one is, given
that. Costs may come in steps, since kernels work in tiles, so the best of all continuations of one
to several tokens decides. A token already drawn stays in the draft, however unsure: whether it is
verified must not depend on what it turned out to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.planner.beliefs import Beliefs

_CHEAP = "not worth another token's price"


@dataclass(frozen=True, slots=True)
class Prices:
    """What a round's tokens cost, and what time earns.

    Args:
        seconds: Of a round's pass with n drafted tokens, the decision with it, by n from 0.
        draft_seconds: Of a token that is not known before it is paid for.
        rate: Emitted tokens per second in the long run.
        balance: What a round may lose if nothing is accepted, in plain passes.
    """

    seconds: Sequence[float]
    draft_seconds: float
    rate: float
    balance: float


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
    ) -> None:
        self._prices = prices
        self._beliefs = beliefs
        self._acceptance = acceptance
        self._most_paid = most_paid
        self._probe = probe
        self._closed = closed
        self._kept = [1.0]  # by node + 1: the chance that all up to it are accepted
        self._blind: dict[str, bool] = {}  # by source: whether it was last asked for unseen
        self.branching = branching
        self.stopped = ""
        self.taken: list[tuple[str, float, bool]] = []  # source, confidence, whether unseen
        self.paid = 0

    @property
    def nodes(self) -> int:
        """Most tokens in the draft altogether."""
        return len(self._prices.seconds) - 1

    def value(
        self, source: str, confidence: float | None = None, after: int | None = None
    ) -> float:
        """Expected tokens of the best continuation by `source`, less what its time would earn."""
        n, blind = len(self.taken), confidence is None
        self._blind[source] = blind
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
        best, tokens = -1.0, 0.0
        seconds = self._prices.seconds
        for more in range(1, len(seconds) - n):
            kept *= chance
            tokens += kept
            spent = seconds[n + more] - seconds[n] + more * price
            best = max(best, tokens - self._prices.rate * spent)
        if best <= 0:
            return self._no(_CHEAP)
        self.stopped = ""
        return best

    def take(self, source: str, confidence: float, after: int | None = None) -> None:
        """Note a token, and how likely it and all before it are kept."""
        kept = self._kept[-1 if after is None else after + 1]
        self._kept.append(kept * self._beliefs.rate(source, confidence))
        blind = self._blind.get(source, False)
        self.taken.append((source, confidence, blind))
        self.paid += blind

    def _affordable(self, drafted: int, price: float) -> bool:
        """Whether so many tokens could all be lost; a probe's were counted before."""
        if drafted >= len(self._prices.seconds):
            return False
        spent = self._prices.seconds[drafted] + self.paid * self._prices.draft_seconds + price
        return spent / self._prices.seconds[0] - 1 <= self._prices.balance

    def _no(self, why: str) -> float:
        self.stopped = why
        return -1.0
