"""`Auto`, its costs measured when the first request begins."""

from __future__ import annotations

from threading import Lock

from draftproof.core import Prompt
from draftproof.planner.costs import Costs, measure_costs
from draftproof.planner.length import STEADY, Auto, AutoPolicy
from draftproof.planner.running import Experience
from draftproof.ports import Drafter, LengthPolicy, Model

SIZES = (1, 2, 4, 8, 16)
REPEATS = 2
BUDGET = 2.0  # seconds
PREFIX = 64  # tokens of the prompt that stand in the cache; longer ones would cost their reading


class Measured:
    """The adaptive draft length of one target and drafter on this machine.

    The costs are measured once, behind the first request's own prompt (an encoder's features have
    no stand-in). Every request corrects them as it runs, and the next one starts from the costs and
    the acceptance that were learned. A request that has to be reproducible neither learns nor
    teaches.

    Args:
        target: The target.
        drafter: What drafts for it.
    """

    def __init__(self, target: Model, drafter: Drafter) -> None:
        self._target = target
        self._drafter = drafter
        self._lock = Lock()
        self._auto: Auto | None = None
        self._experience: Experience | None = None

    def begin(self, prompt: Prompt, reproducible: bool = False) -> LengthPolicy:
        """A policy that starts from the measured costs and from what earlier requests taught."""
        if reproducible:
            return STEADY
        with self._lock:  # requests that begin together wait for one measurement
            if self._auto is None or self._experience is None:
                self._auto = Auto(self._measure(prompt))
                self._experience = Experience(self._auto.acceptance, self._auto.weight)
        return AutoPolicy(self._auto, self._experience)

    def _measure(self, prompt: Prompt) -> Costs:
        return measure_costs(
            self._target,
            self._drafter,
            prompt[:PREFIX] if isinstance(prompt, tuple) else prompt,
            sizes=SIZES,
            repeats=REPEATS,
            budget=BUDGET,
        )
