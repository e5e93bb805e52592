"""Which threads compute a model fastest on this machine, by timing passes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from statistics import median

from draftproof.planner.timing import Clock, take_turns, timed_pass
from draftproof.ports import Session, Threaded, Threads

ROWS = (1, 4)  # of a plain step, and of a short draft's scoring
CLEARLY = 0.95  # of the usual choice's seconds, or less
AGREEING = 0.75  # of the repeats
FEWEST = 3  # repeats that can agree
REPEATS = 7
BUDGET = 0.2  # seconds of timed passes


def best_threads(choices: Sequence[Threads], samples: Sequence[Sequence[float]]) -> Threads:
    """The usual choice, unless another is clearly faster.

    Other work on the machine slows some repeats down, so that medians alone would flip: a choice is
    faster where it takes `CLEARLY` less than the usual one in most repeats, each compared within
    itself.

    Args:
        choices: The usual one first.
        samples: Seconds, a row for each repeat and a column for each choice.
    """
    if len(samples) < FEWEST:
        return choices[0]
    best, ratio = choices[0], 1.0
    for choice, column in list(zip(choices, zip(*samples, strict=True), strict=True))[1:]:
        ratios = sorted(own / row[0] for own, row in zip(column, samples, strict=True))
        agreed = ratios[math.ceil(AGREEING * len(ratios)) - 1]
        if agreed < CLEARLY and median(ratios) < ratio:
            best, ratio = choice, median(ratios)
    return best


def measure_threads(
    model: Threaded, prompt: tuple[int, ...], clock: Clock = time.perf_counter
) -> tuple[tuple[float, ...], ...]:
    """Time passes of a model over 1 and over 4 tokens, for each of its choices.

    Args:
        model: The model; it goes on with the threads that it has.
        prompt: Token ids, at least one, which is what passes are made of.
        clock: The time in seconds.

    Returns:
        Seconds, a row for each repeat and a column for each choice. In `BUDGET` fewer repeats of a
        slow model are made.
    """
    with ExitStack() as opened:

        def trial(threads: Threads) -> Session:
            return opened.enter_context(closing(model.trial(threads).open(prompt[:1])))

        sessions = [trial(threads) for threads in model.choices()]

        def timed(session: Session) -> float:
            return sum(timed_pass(session, rows, clock) for rows in ROWS)

        passes = [partial(timed, session) for session in sessions]
        for one_turn in passes:
            one_turn()
        return take_turns(passes, REPEATS, BUDGET, clock)
