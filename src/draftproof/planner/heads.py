"""How much of a draft model's output head to compute, by what passes cost and what is left out."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from statistics import median

from draftproof import theory
from draftproof.planner.timing import Clock, take_turns, timed_pass
from draftproof.ports import Model, Narrowing

SMALLEST = 4096
ACCEPTANCE = 0.8  # of a draft model that is worth using
LONGEST = 8
CLOSE = 0.99  # of the best gain: what differs by less differs by chance
REPEATS = 3
BUDGET = 0.15  # seconds of timed passes


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

    Of those that come close to it, the largest: what it leaves out is missed in some text, and
    noise does not flip the choice.

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

    gains = [gain(cost) for cost in costs]
    close = [c for c, g in zip(costs, gains, strict=True) if g >= CLOSE * max(gains)]
    return max(close, key=lambda cost: math.inf if cost.ids is None else cost.ids)


def measure_heads(
    draft: Narrowing,
    texts: Sequence[Sequence[int]],
    sizes: Iterable[int],
    clock: Clock = time.perf_counter,
) -> list[HeadCost]:
    """The costs of the whole head and of those of some sizes.

    Args:
        draft: The draft model.
        texts: Token ids of some texts of the usual kinds, at least one token altogether.
        sizes: In ids; those below `SMALLEST` are left out.
        clock: The time in seconds.
    """
    assert isinstance(draft, Model)
    heads = [None, *(size for size in sizes if size >= SMALLEST)]
    models = [draft if ids is None else draft.narrow(range(0, ids, 16))[0] for ids in heads]
    prompt = tuple(next(filter(None, texts))[:1])  # the pass reads weights, whatever is cached
    with ExitStack() as opened:
        sessions = [opened.enter_context(closing(model.open(prompt))) for model in models]
        passes = [partial(timed_pass, session, 1, clock) for session in sessions]
        for one_pass in passes:
            one_pass()
        samples = take_turns(passes, REPEATS, BUDGET, clock)
    return [
        HeadCost(ids, median(column), 1.0 if ids is None else share(texts, ids))
        for ids, column in zip(heads, zip(*samples, strict=True), strict=True)
    ]


def share(texts: Sequence[Sequence[int]], ids: int) -> float:
    """The share of tokens that are below `ids`, or that their text has met before."""
    lacking = sum(len({token for token in text if token >= ids}) for text in texts)
    return 1 - lacking / sum(map(len, texts))
