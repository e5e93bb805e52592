"""Which drafter to use, or none, and why: forecasts and the memory, in a plain sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from draftproof import theory
from draftproof.bench.forecast import Standing
from draftproof.bench.plan import Record
from draftproof.planner import Costs, Plan
from draftproof.ports import Drafter, Model

WORTH = 1.02  # a speed-up that is one
GOOD = 0.9  # an acceptance rate that few pairs exceed
CHEAP = 0.02  # a cost ratio next to nothing
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that weights and caches take, for contexts of `context` tokens.

    The weights are in memory when this is asked; `free` is what is left for the caches where they
    lie, and `fits` whether they have room.
    """

    context: int
    target_weights: int
    target_cache: int
    draft_weights: int
    draft_cache: int
    free: int
    fits: bool

    def to_json(self) -> dict[str, Any]:
        """The figures, in bytes."""
        return {
            "context": self.context,
            "target_weights": self.target_weights,
            "target_cache": self.target_cache,
            "draft_weights": self.draft_weights,
            "draft_cache": self.draft_cache,
            "free": self.free,
            "fits": self.fits,
        }

    def describe(self) -> str:
        """In words."""
        parts = [
            f"target {self.target_weights / GIB:.2f} GiB, its cache "
            f"{self.target_cache / GIB:.2f} GiB for {self.context} tokens"
        ]
        if self.draft_weights or self.draft_cache:
            parts.append(
                f"draft {self.draft_weights / GIB:.2f} GiB, its cache "
                f"{self.draft_cache / GIB:.2f} GiB"
            )
        room = "which is enough" if self.fits else "which is NOT enough for the caches"
        parts.append(f"{self.free / GIB:.2f} GiB are free, {room}")
        return "; ".join(parts)


def memory(target: Model, drafter: Drafter, context: int) -> Memory:
    """What the pair takes for one sequence of `context` tokens, and whether it is there."""
    draft = drafter.model
    target_cache = context * target.cache_bytes_per_token
    draft_cache = context * draft.cache_bytes_per_token if draft is not None else 0
    free = free_bytes(target)
    fits = target_cache <= free
    if draft is not None:
        apart = device_of(draft) != device_of(target)
        fits = fits and (
            draft_cache <= free_bytes(draft) if apart else target_cache + draft_cache <= free
        )
    return Memory(
        context,
        target.weight_bytes,
        target_cache,
        draft.weight_bytes if draft is not None else 0,
        draft_cache,
        free,
        fits,
    )


def device_of(model: Model) -> Any:
    """Where a loaded model lies; None where it does not say."""
    return getattr(getattr(model, "model", None), "device", None)


def free_bytes(model: Model) -> int:
    """Bytes that are free where the model lies; the machine's own memory where it does not say."""
    device = device_of(model)
    if device is None or device.type == "cpu":
        return int(psutil.virtual_memory().available)
    from draftproof.backends.memory import available

    return available(device)


def advise(
    record: Record, fixed: Plan, chosen: Standing, others: Sequence[Standing], there: Memory
) -> tuple[bool, str]:
    """Whether a drafter is worth using, and a sentence that says why.

    Args:
        record: The runs of the best one at a fixed length.
        fixed: What follows from them.
        chosen: The best drafter.
        others: The others, the best first.
        there: The memory that it needs and has.
    """
    name, span = chosen.name, chosen.span
    refusal = f"Do not use {name}:"
    if others:
        names = ", ".join((name, *(s.name for s in others)))
        refusal = f"None of {names} pays: with the best,"
    if not there.fits:
        return False, f"Do not use {name}: no memory for the caches ({there.describe()})."
    if fixed.acceptance is None:
        return False, f"Do not use {name} on such prompts: it found nothing to draft."
    if chosen.speedup >= WORTH and chosen.low >= 1:
        next_best = f" Next is {others[0].name}, {others[0].span}." if others else ""
        return True, f"Use {name}: expect {span}, since {account(record.costs, fixed)}.{next_best}"
    causes = reasons(record, fixed, chosen.speedup)
    if chosen.speedup >= WORTH:
        return True, f"Use {name}, though it may help little: expect {span}; {causes}."
    return False, f"{refusal} expect {span}; {causes}."


def account(costs: Costs, fixed: Plan) -> str:
    """The figures behind a speed-up."""
    best = fixed.best
    return (
        f"{fixed.acceptance:.0%} of drafted tokens are accepted, drafting one costs "
        f"{costs.ratio:.2f} of a plain pass, and a pass over {best.length + 1} tokens "
        f"{costs.curve(best.length + 1) / costs.curve(1):.2f} of one"
    )


def reasons(record: Record, fixed: Plan, speedup: float) -> str:
    """What stands in the way: each cause whose cure alone would make speculation pay."""
    costs = record.costs
    alpha = fixed.acceptance or 0.0
    single = costs.curve(1)

    def pays(alpha: float, draft_seconds: float, flat: bool) -> bool:
        def passes(n: int) -> float:
            return single if flat else costs.curve(n)

        best = theory.best_length(alpha, record.longest, passes, draft_seconds)
        gain: float = theory.speedup(alpha, best, passes, draft_seconds)
        return gain >= max(WORTH, 1.1 * speedup)

    low = f"acceptance is low ({alpha:.0%} of drafted tokens)"
    dear = f"the draft is not much cheaper than the target (c = {costs.ratio:.2f})"
    steep = (
        "passes over several tokens cost too much on this machine "
        f"(over 4 tokens {costs.curve(4) / single:.2f} times what one costs)"
    )
    cures: Sequence[tuple[str, bool]] = (
        (low, alpha < GOOD and pays(GOOD, costs.draft_seconds, flat=False)),
        (dear, costs.ratio > CHEAP and pays(alpha, CHEAP * single, flat=False)),
        (steep, costs.curve(4) > 1.2 * single and pays(alpha, costs.draft_seconds, flat=True)),
    )
    causes = [cause for cause, cured in cures if cured]
    return " and ".join(causes or [low, dear, steep])
