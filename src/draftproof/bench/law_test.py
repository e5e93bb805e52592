"""Is the output's law the target's? A sequential test with both error rates guaranteed.

Given the tokens before it, an emitted token x has law p under a right rule. A wrong rule has some
other law r, and the ways to be wrong have names (`ALTERNATIVES`). For each, the ratio

    R_n = product over the emitted tokens of r(x) / p(x)

decides (Wald 1945): a right rule makes R_n a martingale of mean 1, so by Ville's inequality it ever
reaches 1 / a with probability at most a; a rule whose law is r makes 1 / R_n one, so that R_n ever
falls to b with probability at most b. R_n >= 1 / a finds the fault, R_n <= b rules it out. Nothing
here needs the tokens to be independent or alike, only p to be the law given what came before. That
includes how far the round has come: under `token`, `block` and `coupled` alike, the token behind j
accepted ones has law p given that j were accepted, so an alternative may count drafted places only.

With K alternatives and a = ALPHA / K, a right rule fails with probability at most ALPHA, and a rule
of a named law passes with probability at most BETA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from draftproof.core import Dense, Float64, Law, PointMass

ALPHA = 1e-4
BETA = 0.01
EFFECT = 0.2  # how much of a token's law a leaning rule takes from somewhere else
# Where r is on average closer to p than this (total variation), the two are taken for one law.
INDISTINCT = 0.002
LOOK = 48  # places where the two could differ, before that is judged
PATIENCE = 600  # tokens in which so many places must have been met

Mass: TypeAlias = Float64[np.ndarray, "vocab"]
Outcome: TypeAlias = Literal["open", "found", "ruled out", "same law", "no occasion"]


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """What is known at a position before its token is drawn.

    Args:
        p: The target's law under the sampling settings.
        q: The draft's; None where no draft is judged: at a bonus and at a plain token.
        raw: The target's softmax before any setting.
    """

    p: Mass
    q: Mass | None
    raw: Mass


def to_draft(place: Place) -> Mass:
    """Drafts are kept too readily: (1 - EFFECT) p + EFFECT q."""
    if place.q is None:
        return place.p
    law: Mass = place.p + EFFECT * (place.q - place.p)
    return law


def from_draft(place: Place) -> Mass:
    """Drafts are kept too rarely: p + EFFECT (p - q), halving p at most."""
    if place.q is None:
        return place.p
    return normalised(np.maximum(place.p - EFFECT * (place.q - place.p), place.p / 2))


def to_favourite(place: Place) -> Mass:
    """Drafts are not drawn from q but bent to its best token: (1 - EFFECT) p + EFFECT there."""
    if place.q is None:
        return place.p
    law = place.p * (1 - EFFECT)
    law[np.argmax(place.q)] += EFFECT
    return law


def target_residual(place: Place) -> Mass:
    """After a rejection p, not the residual, is drawn: min(p, q) + (1 - sum of min(p, q)) p."""
    if place.q is None:
        return place.p
    kept = np.minimum(place.p, place.q)
    law: Mass = kept + (1 - kept.sum()) * place.p
    return law


def unprocessed(place: Place) -> Mass:
    """The softmax of the raw logits where no draft was judged: bonus and plain tokens."""
    return place.raw if place.q is None else place.p


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way to be wrong: its name and its law."""

    name: str
    law: Callable[[Place], Mass]


ALTERNATIVES = (
    Alternative("leans to the draft", to_draft),
    Alternative("leans away from the draft", from_draft),
    Alternative("leans to the draft's favourite", to_favourite),
    Alternative("residual drawn from the target", target_residual),
    Alternative("bonus from unprocessed logits", unprocessed),
)


@dataclass(slots=True)
class Ratio:
    """The evidence for one alternative: `evidence` is log R_n, in nats.

    `places` counts where it says anything, and `distance` adds up how far r is from p there.
    """

    alternative: Alternative
    evidence: float = 0.0
    distance: float = 0.0
    places: int = 0
    outcome: Outcome = "open"


@dataclass(slots=True)
class LawTest:
    """The test of one rule.

    Args:
        alpha: The most probable a false alarm may be, over all alternatives.
        beta: The most probable a miss may be, for each alternative.
        alternatives: The laws to tell from the target's.
    """

    alpha: float = ALPHA
    beta: float = BETA
    alternatives: Sequence[Alternative] = ALTERNATIVES
    tokens: int = 0
    impossible: int | None = None
    ratios: list[Ratio] = field(init=False)

    def __post_init__(self) -> None:
        self.ratios = [Ratio(alternative) for alternative in self.alternatives]

    @property
    def found(self) -> list[Ratio]:
        """The faults that were found."""
        return [ratio for ratio in self.ratios if ratio.outcome == "found"]

    @property
    def done(self) -> bool:
        """Whether a fault was found, or there is nothing more to wait for."""
        settled = all(ratio.outcome != "open" for ratio in self.ratios)
        return settled or bool(self.found) or self.impossible is not None

    @property
    def failed(self) -> bool:
        """Whether the output's law is not the target's, as far as the test can tell."""
        return bool(self.found) or self.impossible is not None

    def observe(self, token: int, place: Place) -> None:
        """Take the token that was emitted at a place."""
        self.tokens += 1
        mass = float(place.p[token])
        if mass == 0:
            self.impossible = token
            return
        for ratio in self.ratios:
            if ratio.outcome == "open":
                law = ratio.alternative.law(place)
                if law is not place.p:
                    ratio.places += 1
                    ratio.distance += float(np.abs(law - place.p).sum()) / 2
                    odds = float(law[token]) / mass
                    ratio.evidence += math.log(odds) if odds > 0 else -math.inf
                ratio.outcome = self._decide(ratio)

    def _decide(self, ratio: Ratio) -> Outcome:
        if ratio.evidence >= math.log(len(self.ratios) / self.alpha):
            return "found"
        if ratio.evidence <= math.log(self.beta):
            return "ruled out"
        if ratio.places < LOOK:
            return "open" if self.tokens < PATIENCE else "no occasion"
        return "same law" if ratio.distance < INDISTINCT * ratio.places else "open"


def masses(law: Law, vocab: int) -> Mass:
    """A law's probabilities over the vocabulary."""
    if isinstance(law, Dense):
        return law.probs
    probs = np.zeros(vocab)
    probs[law.token] = 1.0
    return probs


def normalised(mass: Mass) -> Mass:
    """Divided by its sum."""
    scaled: Mass = mass / mass.sum()
    return scaled


def distance(p: Law, q: Law) -> float:
    """The total variation between two laws over one vocabulary."""
    if isinstance(p, PointMass):
        return 1 - float(q.prob(p.token))
    return float(np.abs(p.probs - masses(q, len(p.probs))).sum()) / 2
