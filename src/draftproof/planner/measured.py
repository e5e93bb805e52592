"""`Auto`, its costs measured when the first request begins."""

from __future__ import annotations

from draftproof.core import Prompt
from draftproof.planner.costs import measure_costs
from draftproof.planner.length import STEADY, Auto
from draftproof.ports import Drafter, LengthPolicy, Model

SIZES = (1, 2, 4, 8, 16)
REPEATS = 2
BUDGET = 2.0  # seconds
PREFIX = 64  # tokens of the prompt that stand in the cache; longer ones would cost their reading


class Measured:
    """The adaptive draft length of one target and drafter on this machine.

    The costs are measured once, behind the first request's own prompt (an encoder's features have
    no stand-in). Every request corrects them for itself as it runs.

    Args:
        target: The target.
        drafter: What drafts for it.
    """

    def __init__(self, target: Model, drafter: Drafter) -> None:
        self._target = target
        self._drafter = drafter
        self._auto: Auto | None = None

    def begin(self, prompt: Prompt, reproducible: bool = False) -> LengthPolicy:
        """A policy that starts from the measured costs."""
        if reproducible:
            return STEADY
        if self._auto is None:
            stand_in = prompt[:PREFIX] if isinstance(prompt, tuple) else prompt
            self._auto = Auto(
                measure_costs(
                    self._target,
                    self._drafter,
                    stand_in,
                    sizes=SIZES,
                    repeats=REPEATS,
                    budget=BUDGET,
                )
            )
        return self._auto.begin(prompt)
