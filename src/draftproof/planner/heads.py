"""How much of a draft model's output head to compute, by what passes cost and what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftproof import theory
from draftproof.planner.costs import measure
from draftproof.ports import Model, Narrowing

SMALLEST = 4096
ACCEPTANCE = 0.8  # of a draft model that is worth using
LONGEST = 8
REPEATS = 3


@dataclass(frozen=True, slots=True)
class HeadCost:
    """A head of the ids below `ids` (None: all): seconds of a pass, and the share of tokens in it.

    A token that its text has met before counts as in it.
    """

    ids: int | None
    seconds: float
    share: float


def best_head(costs: Sequence[HeadCost], target_seconds: float) -> HeadCost:
    """The head with the highest speed-up (theorem 3.8) for a draft of acceptance `ACCEPTANCE`.

    Args:
        costs: At least one.
        target_seconds: Of the target's pass over one token.
    """

    def gain(cost: HeadCost) -> float:
        alpha = ACCEPTANCE * cost.share

        def one_pass(n: int) -> float:
            return target_seconds

        length = theory.best_length(alpha, LONGEST, one_pass, cost.seconds)
        return float(theory.speedup(alpha, length, one_pass, cost.seconds))

    return max(costs, key=gain)


def measure_heads(
    draft: Narrowing, texts: Sequence[Sequence[int]], sizes: Iterable[int]
) -> list[HeadCost]:
    """The costs of the whole head and of those of some sizes.

    Args:
        draft: The draft model.
        texts: Token ids of some texts of the usual kinds, at least one token altogether.
        sizes: In ids; those below `SMALLEST` are left out.
    """
    assert isinstance(draft, Model)
    prompt = tuple(texts[0][:32])
    costs = [HeadCost(None, _seconds(draft, prompt), 1.0)]
    for ids in filter(lambda size: size >= SMALLEST, sizes):
        small, _ = draft.narrow(range(0, ids, 16))
        costs.append(HeadCost(ids, _seconds(small, prompt), share(texts, ids)))
    return costs


def share(texts: Sequence[Sequence[int]], ids: int) -> float:
    """The share of tokens that are below `ids`, or that their text has met before."""
    lacking = sum(len({token for token in text if token >= ids}) for text in texts)
    return 1 - lacking / sum(map(len, texts))


def _seconds(model: Model, prompt: tuple[int, ...]) -> float:
    return measure(model, prompt, sizes=(1,), repeats=REPEATS).seconds[0]
