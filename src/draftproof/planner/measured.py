"""`Auto`, its costs measured when a pair is loaded, or known from an earlier process.

Costs that nobody measured before are measured when the first request begins: those of models that
were passed in, of encoders of sound, and of targets that are too slow for loading to wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

from draftproof.core import Prompt
from draftproof.planner.costs import CostCurve, Costs
from draftproof.planner.length import STEADY, Auto, AutoPolicy
from draftproof.planner.profile import Profile, ProfileFile
from draftproof.planner.running import Experience
from draftproof.planner.timing import Clock, draft_cost, measure_costs, measure_soon
from draftproof.ports import Drafter, LengthPolicy, Model
from draftproof.sampling import Sampling, Standardiser

# All of this takes under a second where a pass over one token takes some 40 ms.
SIZES = (1, 2, 4, 8)
REPEATS = 3
BUDGET = 0.25  # seconds of timed passes
PREFIX = 16  # tokens of the prompt that stand in the cache; longer ones would cost their reading
DRAFT = 2  # tokens per timed draft
EARLY = 0.15  # the budget at load, where the threads and the draft's head are measured, too
EARLY_CURVE = 0.25  # that of the target's passes
STAND_IN = 9  # tokens of text there: reading all but one is like the largest pass, and warms up
PATIENCE = 0.3  # seconds to read them: the costs of a slower target wait for the first request
SAVE_EVERY = 5.0  # seconds


def early_curve(
    target: Model, prompt: tuple[int, ...], clock: Clock = time.perf_counter
) -> CostCurve | None:
    """What a target's passes cost, measured at load; None where that would take long.

    Args:
        target: The target.
        prompt: Some token ids of an ordinary text.
        clock: The time in seconds.
    """
    return measure_soon(
        target, prompt[:STAND_IN], patience=PATIENCE, warmed=True, sizes=SIZES, repeats=REPEATS,
        budget=EARLY_CURVE, clock=clock,
    )  # fmt: skip


def early_costs(
    curve: CostCurve, drafter: Drafter, prompt: tuple[int, ...], clock: Clock = time.perf_counter
) -> Costs:
    """The target's costs with a drafter's, which are measured behind the same prompt.

    Args:
        curve: The target's.
        drafter: What drafts for it.
        prompt: As for `early_curve`.
        clock: The time in seconds.
    """
    standardise, start = Standardiser(Sampling()), prompt[:STAND_IN]
    return Costs(
        curve,
        draft_cost(
            drafter, start, standardise, tokens=DRAFT, repeats=REPEATS, budget=EARLY, clock=clock
        ),
    )


class Measured:
    """The adaptive draft length of one target and drafter on this machine.

    The costs are those given, or those of the profile, or they are measured once, behind the first
    request's own prompt. Every request corrects them as it
    runs, and the next one starts from the costs and the acceptance that were learned. A request
    that has to be reproducible neither learns nor teaches.

    Args:
        target: The target.
        drafter: What drafts for it.
        costs: What they cost, where that is known.
        profile: Where costs and what was learned are kept; None keeps them in this object alone.
        clock: The time in seconds.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter,
        *,
        costs: Costs | None = None,
        profile: ProfileFile | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._given = costs
        self._profile = profile
        self._clock = clock
        self._saved: float | None = None
        self._lock = Lock()
        self._known: tuple[Auto, Experience] | None = None

    def begin(self, prompt: Prompt, reproducible: bool = False) -> LengthPolicy:
        """A policy that starts from the measured costs and from what earlier requests taught."""
        if reproducible:
            return STEADY
        with self._lock:  # requests that begin together wait for one measurement
            if self._known is None:
                self._known = self._start(prompt)
        if self._profile is None:
            return AutoPolicy(*self._known)
        return KeptPolicy(*self._known, self._save)

    def _start(self, prompt: Prompt) -> tuple[Auto, Experience]:
        kept = None if self._profile is None else self._profile.read()
        costs = self._given or (self._measure(prompt) if kept is None else kept.costs)
        auto = Auto(costs)
        taught = None if kept is None else kept.taught
        if taught is not None and len(taught.corrections.own) != auto.limit + 1:
            taught = None
        return auto, Experience(auto.acceptance, auto.weight, taught)

    def _measure(self, prompt: Prompt) -> Costs:
        return measure_costs(
            self._target,
            self._drafter,
            prompt[:PREFIX] if isinstance(prompt, tuple) else prompt,
            sizes=SIZES,
            repeats=REPEATS,
            budget=BUDGET,
            draft_tokens=DRAFT,
        )

    def _save(self) -> None:
        """Write the profile, unless that was done a moment ago."""
        with self._lock:
            now = self._clock()
            if self._saved is not None and now - self._saved < SAVE_EVERY:
                return
            self._saved = now
            assert self._profile is not None
            assert self._known is not None
            auto, experience = self._known
            self._profile.write(Profile(auto.costs, experience.taught))


class KeptPolicy(AutoPolicy):
    """A policy that has what was learned kept when its request ends.

    Args:
        auto: The settings.
        experience: As for `AutoPolicy`.
        keep: Keeps it.
    """

    def __init__(self, auto: Auto, experience: Experience, keep: Callable[[], None]) -> None:
        super().__init__(auto, experience)
        self._keep = keep

    def close(self, ended: bool) -> None:
        """The request is over."""
        super().close(ended)
        self._keep()
