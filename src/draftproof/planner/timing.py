"""Timing a target's passes and a drafter's drafts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from typing import TypeAlias

from draftproof.core import Prompt, Verdict
from draftproof.errors import InvalidSetting
from draftproof.planner.costs import CostCurve, Costs
from draftproof.ports import Drafter, Model, Session, Standardise
from draftproof.rng import Independent, Noise
from draftproof.sampling import Sampling, Standardiser

SIZES = (1, 2, 3, 4, 6, 8, 12, 16)

Clock: TypeAlias = Callable[[], float]


def measure_costs(
    target: Model,
    drafter: Drafter,
    prompt: Prompt | None = None,
    standardise: Standardise | None = None,
    *,
    sizes: Sequence[int] = SIZES,
    repeats: int = 5,
    budget: float | None = None,
    draft_tokens: int = 4,
    clock: Clock = time.perf_counter,
) -> Costs:
    """Time a target's passes and a drafter's drafts.

    Args:
        target: The target.
        drafter: The drafter.
        prompt: What both start from; some 32 token ids by default.
        standardise: Sampling settings for the drafts; greedy by default.
        sizes: As in `measure`.
        repeats: As in `measure` and `draft_cost`.
        budget: As in `measure`, of passes and of drafts each.
        draft_tokens: Tokens asked for per draft.
        clock: The time in seconds.
    """
    if prompt is None:
        prompt = tuple(i % target.vocab_size for i in range(32))
    if standardise is None:
        standardise = Standardiser(Sampling())
    curve = measure(target, prompt, sizes=sizes, repeats=repeats, budget=budget, clock=clock)
    drafts = draft_cost(
        drafter, prompt, standardise, tokens=draft_tokens, repeats=repeats, budget=budget,
        clock=clock,
    )  # fmt: skip
    return Costs(curve, drafts)


def measure(
    model: Model,
    prompt: Prompt,
    *,
    sizes: Sequence[int] = SIZES,
    repeats: int = 5,
    budget: float | None = None,
    clock: Clock = time.perf_counter,
) -> CostCurve:
    """Time passes of a model behind a prompt.

    Each size is warmed up once. Then the sizes take turns, so that whatever else the machine does
    meets all of them alike.

    Args:
        model: The model.
        prompt: What stands in the cache; its own tokens are scored again as the passes' tokens.
        sizes: Tokens per pass, rising from 1. Those that the context has no room for are left out.
        repeats: Timed passes per size, at least 1.
        budget: No repeat begins after this many seconds of timed passes; the first always runs.
        clock: The time in seconds.

    Raises:
        InvalidSetting: `repeats` is below 1, or the sizes do not rise from 1.
    """
    curve = measure_soon(
        model, prompt, sizes=sizes, repeats=repeats, budget=budget, clock=clock
    )  # fmt: skip
    assert curve is not None  # there was no end to the patience
    return curve


def measure_soon(
    model: Model,
    prompt: Prompt,
    *,
    patience: float | None = None,
    warmed: bool = False,
    sizes: Sequence[int] = SIZES,
    repeats: int = 5,
    budget: float | None = None,
    clock: Clock = time.perf_counter,
) -> CostCurve | None:
    """As `measure`, whose arguments the others are, unless the model is too slow for that now.

    Args:
        model: The model.
        prompt: What stands in the cache.
        patience: None comes back where reading the prompt took longer than these seconds.
        warmed: Reading the prompt as a pass reads, or one pass where there is nothing to read,
            warms up all sizes.
        sizes: Tokens per pass.
        repeats: Timed passes per size.
        budget: Seconds of timed passes.
        clock: The time in seconds.
    """
    _check_repeats(repeats)
    start = clock()
    with closing(model.open(prompt)) as session:
        *cached, _ = session.prefix
        if cached:
            session.score(cached, keep=len(cached) if warmed else 0)
        elif warmed:
            timed_pass(session, 1, clock)
        if patience is not None and clock() - start > patience:
            return None
        context = model.context_length
        fitting = tuple(n for n in sizes if context is None or len(cached) + n <= context)
        passes = [partial(timed_pass, session, n, clock) for n in fitting]
        if not warmed:
            for one_pass in passes:
                one_pass()
        return CostCurve.of_samples(fitting, take_turns(passes, repeats, budget, clock))


def timed_pass(session: Session, n: int, clock: Clock = time.perf_counter) -> float:
    """Seconds of a pass over n tokens behind the cached ones; the cache is then as before."""
    cached, prefix = session.length, session.prefix
    tokens = [prefix[-1], *(prefix[i % len(prefix)] for i in range(n - 1))]
    start = clock()
    session.score(tokens, keep=n)
    seconds = clock() - start
    session.rewind(cached)
    return seconds


def take_turns(
    timed: Sequence[Callable[[], float]],
    repeats: int,
    budget: float | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[tuple[float, ...], ...]:
    """Do in turn what is to be compared, so that a slow spell of the machine meets all alike.

    Args:
        timed: Do it, and return the seconds that it took.
        repeats: At least 1.
        budget: No repeat begins after this many seconds of repeats.
        clock: The time in seconds.

    Returns:
        A row for each repeat, a column for each of `timed`.
    """
    samples: list[tuple[float, ...]] = []
    began = clock()
    while len(samples) < repeats:
        samples.append(tuple(once() for once in timed))
        if budget is not None and clock() - began > budget:
            break
    return tuple(samples)


def draft_cost(
    drafter: Drafter,
    prompt: Prompt,
    standardise: Standardise,
    *,
    tokens: int = 4,
    repeats: int = 5,
    budget: float | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[float, ...]:
    """Seconds per drafted token, once per repeat: the draft's passes and the sampling from them.

    Args:
        drafter: Any drafter. One that finds nothing is charged its call over `tokens`.
        prompt: The request's prompt.
        standardise: The request's sampling settings, as in `Drafter.begin`.
        tokens: Tokens asked for per draft.
        repeats: Timed drafts, at least 1, after one that is not timed.
        budget: As in `take_turns`.
        clock: The time in seconds.

    Raises:
        InvalidSetting: `repeats` is below 1.
    """
    _check_repeats(repeats)
    attempts = count()
    with closing(drafter.begin(prompt, standardise)) as proposer:

        def one_draft() -> float:
            attempt = next(attempts)
            if attempt:  # the last one has no verdict: a drafter that learns would keep its token
                proposer.observe(Verdict(0, 0, "residual"))  # rejected: the next one starts alike
            stream = Independent(Noise(0), start=0, attempt=attempt)
            start = clock()
            draft = proposer.draft((), tokens, stream)
            return (clock() - start) / (len(draft) or tokens)

        one_draft()
        return tuple(sample for (sample,) in take_turns([one_draft], repeats, budget, clock))


def _check_repeats(repeats: int) -> None:
    if repeats < 1:
        raise InvalidSetting(
            f"repeats is {repeats}",
            why="a cost that is not measured is not known",
            remedy="set repeats to 1 or more",
        )
