"""How sure a speed-up is: a paired bootstrap over prompts (Efron 1979)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from draftproof.core import Float64, Int64

Seconds: TypeAlias = Float64[np.ndarray, "prompts"]
Counts: TypeAlias = Int64[np.ndarray, "prompts"]

RESAMPLES = 2000
LEVEL = 0.95
SEED = 20230719  # fixed, so that the same measurements give the same interval


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """A ratio of seconds per token with its interval; no interval for a single prompt."""

    value: float
    low: float | None
    high: float | None


def speed_up(
    base_seconds: Seconds, base_tokens: Counts, seconds: Seconds, tokens: Counts
) -> SpeedUp:
    """How many times fewer seconds a token takes than in the base.

    The value is (sum of base seconds / sum of base tokens) / (sum of seconds / sum of tokens), so
    long outputs count for more than short ones. The interval is the percentile bootstrap at 95 %:
    prompts are drawn with replacement, both modes' runs of a drawn prompt together, 2,000 times
    with a fixed seed. It speaks of the choice of prompts and of the noise in each run; what slows
    the machine down for all modes alike cancels out. With few prompts it is somewhat too narrow,
    as such intervals are.

    Args:
        base_seconds: Of the base (plain decoding), by prompt.
        base_tokens: Tokens that the base emitted, by prompt.
        seconds: Of the mode, for the same prompts.
        tokens: Tokens that the mode emitted.
    """
    prompts = len(seconds)
    value = _ratio(base_seconds.sum(), base_tokens.sum(), seconds.sum(), tokens.sum())
    if prompts < 2:
        return SpeedUp(float(value), None, None)
    picks = np.random.default_rng(SEED).integers(prompts, size=(RESAMPLES, prompts))
    sums = (row[picks].sum(axis=1) for row in (base_seconds, base_tokens, seconds, tokens))
    low, high = np.quantile(_ratio(*sums), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return SpeedUp(float(value), float(low), float(high))


def _ratio(base_seconds: Any, base_tokens: Any, seconds: Any, tokens: Any) -> Any:
    """Numbers or arrays of them alike."""
    return (base_seconds / base_tokens) / (seconds / tokens)
