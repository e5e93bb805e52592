"""Several candidates at one position where drafts are drawn: all but one of them are certain.

Hu et al. (ICLR 2025), arXiv 2502.18779: the draft's likeliest tokens for certain, and one drawn
from what they leave of its law, renormalised. `verify.tree` judges them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from draftproof.core import Dense

_MET = 0.5  # how much of what the certain ones leave is taken to be kept, until it is known


@dataclass(frozen=True, slots=True)
class Certain:
    """A candidate that is certain: its token, what drafts it, and how sure that is."""

    token: int
    source: str
    confidence: float

    def against(self, other: float) -> Certain:
        """The same, where another drafter is sure of another token: as far as that one is not."""
        return replace(self, confidence=self.confidence * (1 - other))


@dataclass(frozen=True, slots=True, eq=False)
class Several:
    """Certain candidates, and how one more is drawn.

    `drawn` is its source and confidence, and the law to draw it from is `left`.
    """

    certain: tuple[Certain, ...]
    drawn: tuple[str, float]
    left: Dense

    @property
    def named(self) -> list[tuple[str, float]]:
        """Sources and confidences, as `ports.Guide.choose` takes them; the drawn one is last."""
        return [*((one.source, one.confidence) for one in self.certain), self.drawn]


def likeliest(law: Dense, count: int, name: str, sure: float) -> list[Several]:
    """Sets of one to `count` certain candidates: the draft's likeliest tokens.

    Fewer come back where nothing would be left to draw from.

    Args:
        law: The draft's.
        count: See above.
        name: What drafts.
        sure: How sure the draft is of the first. A law at a low temperature would say too much; the
            others are as much less sure as they are less likely by it.
    """
    top = float(law.probs.max())
    sets: list[Several] = []
    probs = law.probs
    certain: tuple[Certain, ...] = ()
    while len(sets) < count:
        token = int(probs.argmax())
        chance = sure * float(law.prob(token)) / top
        certain = (*certain, Certain(token, f"{name}, likeliest", chance))
        left = without(law, [one.token for one in certain])
        if left is None:
            break
        probs = left.probs
        met = _MET * max(1 - sum(one.confidence for one in certain), 0.0)
        sets.append(Several(certain, (f"{name}, of the rest", met), left))
    return sets


def without(law: Dense, tokens: Collection[int]) -> Dense | None:
    """`law` without `tokens`, renormalised; None where nothing is left."""
    probs = law.probs.copy()
    probs[[*tokens]] = 0
    total = probs.sum()
    return Dense(probs / total) if total > 0 else None
