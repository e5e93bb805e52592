"""The speed-up of drafters on this machine before they are used, and which of them is the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from draftproof.bench.plan import Contest, Entrant, Record, adaptive_costs, adaptive_runs
from draftproof.planner import Plan, Prediction, predict, predict_adaptive

DRIFT = 0.04  # relative standard deviation of a speed-up measured again on the same machine


@dataclass(frozen=True, slots=True)
class Standing:
    """What is expected of one drafter with its adaptive length.

    Args:
        name: The drafter's.
        speedup: Over plain decoding.
        low: Of the 95 % interval.
        high: Of the same.
        acceptance: The share of drafted tokens that were looked at and kept; None if there was
            none.
        tokens_per_round: Emitted ones.
        draft_length: Tokens drafted in a round, on average.
        prompts: How many were decoded.
        dropped: It clearly lost before all were.
    """

    name: str
    speedup: float
    low: float
    high: float
    acceptance: float | None
    tokens_per_round: float
    draft_length: float
    prompts: int
    dropped: bool

    @property
    def span(self) -> str:
        """The speed-up and its interval."""
        return (
            f"{self.speedup:.2f} times plain decoding's speed ({self.low:.2f} to {self.high:.2f})"
        )

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def ranked(contest: Contest, seed: int = 0) -> list[Standing]:
    """The drafters by their expected speed-up, the best first and those that were dropped last.

    Args:
        contest: What was measured.
        seed: Draws the intervals' resamples.
    """
    standings = [standing(contest, entrant, seed) for entrant in contest.entrants]
    return sorted(standings, key=lambda s: (s.dropped, -s.speedup))


def standing(contest: Contest, entrant: Entrant, seed: int = 0) -> Standing:
    """What is expected of one drafter of a contest."""
    runs = adaptive_runs(entrant)
    dice = np.random.default_rng(seed)
    costs = adaptive_costs(contest, entrant)
    auto: Prediction = predict_adaptive(costs, runs, dice, drift=DRIFT)
    rounds = [r for by_prompt in entrant.rounds for r in by_prompt]
    judged = [guess.kept for r in rounds for guess in r.guesses if guess.p is not None]
    return Standing(
        name=entrant.name,
        speedup=auto.speedup,
        low=auto.low,
        high=auto.high,
        acceptance=sum(judged) / len(judged) if judged else None,
        tokens_per_round=sum(r.emitted for r in rounds) / len(rounds),
        draft_length=sum(r.drafted for r in rounds) / len(rounds),
        prompts=len(entrant.rounds),
        dropped=entrant.dropped,
    )


def at_fixed_lengths(record: Record, seed: int = 0) -> Plan:
    """What is expected at each fixed draft length; the seed draws the intervals' resamples."""
    return predict(record.costs, record.runs, np.random.default_rng(seed), drift=DRIFT)


def first_that_fits(standings: Sequence[Standing], fits: Sequence[bool]) -> Standing:
    """The best of those whose caches have room; the best of all where none has."""
    pairs = zip(standings, fits, strict=True)
    return next((s for s, room in pairs if room), standings[0])
