"""The speed-up beforehand: measured costs and the rounds of a few prompts, put together.

At fixed lengths (`predict`) it is Theorem 3.8 with a measured t(n) and, in place of the i.i.d.
acceptance rate, the rounds of recorded runs, played again at each length (`replay`). The adaptive
length decides by what a drafter says of each token, which no replay knows: its rounds are taken as
they were played, and priced (`predict_adaptive`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftproof.core import Float64
from draftproof.errors import InvalidSetting
from draftproof.planner.costs import Costs
from draftproof.planner.replay import PromptRun, Replay

_EDGES = (0.025, 0.975)  # of 95 % intervals
_WIDEST = 16.0  # beyond the edges even of two prompts' intervals


@dataclass(frozen=True, slots=True)
class Prediction:
    """The speed-up over plain decoding at one draft length, with its interval."""

    length: int
    speedup: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What is expected of a pair on this machine.

    `predictions` begins with length 0, plain decoding. `acceptance` has its interval beside it;
    all three are None where nothing was drafted. `cost_ratio` is the paper's c.
    """

    predictions: tuple[Prediction, ...]
    acceptance: float | None
    acceptance_low: float | None
    acceptance_high: float | None
    cost_ratio: float

    @property
    def best(self) -> Prediction:
        """The length with the highest predicted speed-up; the shortest among equals."""
        return max(self.predictions, key=lambda p: p.speedup)


def predict(
    costs: Costs,
    runs: Sequence[PromptRun],
    rng: np.random.Generator,
    *,
    overhead: float = 0.0,
    future: int | None = None,
    drift: float = 0.03,
    resamples: int = 1000,
) -> Plan:
    """Predict the speed-up at every draft length up to the one that the runs were made with.

    The 95 % interval is one for a *measurement* of the speed-up on other prompts of the kind. It
    comes from a bootstrap: prompts are drawn from those at hand, and `future` prompts from these;
    the repeats of the cost curve and of the draft's cost are drawn anew; what few prompts tell of
    their own spread is as uncertain as in Student's t; and the ratio of two times measured apart is
    off by `drift`.

    Args:
        costs: What target and drafter cost; the samples in it give its uncertainty.
        runs: The prompts' rounds, at least one run with a round; they weigh by their tokens.
        rng: Draws the bootstrap.
        overhead: Seconds per round, plain or not, beside the passes: the decision, the loop.
        future: Prompts that the speed-up is going to be measured on; as many as `runs` by default.
        drift: Relative standard deviation of a speed-up measured again.
        resamples: Bootstrap draws.

    Raises:
        InvalidSetting: No run has a round.
    """
    runs = [run for run in runs if run.rounds]
    _check_rounds(runs)
    longest = max(d for run in runs for d, _ in run.rounds)
    rounds, tokens = _at_lengths(runs, longest)
    weights = np.array([run.tokens for run in runs], dtype=np.float64)
    everyone = np.arange(len(runs))

    def speedups(chosen: np.ndarray, costs: Costs) -> np.ndarray:
        drafted = np.arange(longest + 1)
        passes = np.array([costs.curve(n + 1) for n in range(longest + 1)])
        per_round = passes + drafted * costs.draft_seconds + overhead
        per_token = (rounds[chosen] @ per_round) / tokens[chosen]
        ratio: np.ndarray = weights[chosen].sum() * per_round[0] / (weights[chosen] @ per_token)
        return ratio

    point = speedups(everyone, costs)
    draws = np.empty((resamples, len(point)))
    rates: list[float] = []
    for i in range(resamples):
        known = rng.choice(everyone, len(runs))
        draw = speedups(rng.choice(known, future or len(runs)), costs.resampled(rng))
        draws[i] = point * (draw / point) ** _widening(len(runs), rng, (1,))
        draws[i, 1:] *= np.exp(drift * rng.standard_normal())
        rate = _acceptance([runs[k] for k in known.tolist()])
        if rate is not None:
            rates.append(rate)
    lows, highs = np.quantile(draws, _EDGES, axis=0)
    low, high = (float(x) for x in np.quantile(rates, _EDGES)) if rates else (None, None)
    return Plan(
        tuple(
            Prediction(g, float(point[g]), float(lows[g]), float(highs[g]))
            for g in range(longest + 1)
        ),
        _acceptance(runs),
        low,
        high,
        costs.ratio,
    )


@dataclass(frozen=True, slots=True)
class AdaptiveRun:
    """One prompt decoded with the adaptive draft length.

    Args:
        drafted: Tokens that each round drafted.
        paid: How many of them all cost what a drafted token costs.
        free_seconds: What drafting took in the rounds where none did.
        tokens: Emitted tokens.
    """

    drafted: tuple[int, ...]
    paid: int
    free_seconds: float
    tokens: int


def predict_adaptive(
    costs: Costs,
    runs: Sequence[AdaptiveRun],
    rng: np.random.Generator,
    *,
    future: int | None = None,
    drift: float = 0.03,
    curves: int = 40,
    draws: int = 25,
) -> Prediction:
    """Predict the speed-up of the adaptive length from rounds that it played.

    Rounds are counted and priced by `costs`, so that a stall of the machine in one of them weighs
    no more than in the costs. The interval is the one of `predict`; its length is the mean one.

    Args:
        costs: As in `predict`; the draft's price is that of a token that is paid for.
        runs: One per prompt; at least one has a round.
        rng: As in `predict`.
        future: As in `predict`.
        drift: As in `predict`.
        curves: Draws of the costs.
        draws: Draws of the prompts for each of them.

    Raises:
        InvalidSetting: No run has a round.
    """
    runs = [run for run in runs if run.drafted]
    _check_rounds(runs)
    widest = max(max(run.drafted) for run in runs)
    counts = np.array([np.bincount(run.drafted, minlength=widest + 1) for run in runs])
    paid = np.array([run.paid for run in runs])
    free = np.array([run.free_seconds for run in runs])
    tokens = np.array([run.tokens for run in runs])

    def speedups(chosen: np.ndarray, costs: Costs) -> np.ndarray:
        passes = np.array([costs.curve(n + 1) for n in range(widest + 1)])
        seconds = counts @ passes + paid * costs.draft_seconds + free
        ratio: np.ndarray = (
            costs.curve(1) * tokens[chosen].sum(axis=1) / seconds[chosen].sum(axis=1)
        )
        return ratio

    point = float(speedups(np.arange(len(runs))[None], costs)[0])
    ratios = []
    for _ in range(curves):
        known = rng.integers(len(runs), size=(draws, len(runs)))
        picks = rng.integers(len(runs), size=(draws, future or len(runs)))
        chosen = np.take_along_axis(known, picks, axis=1)
        ratios.append(speedups(chosen, costs.resampled(rng)))
    wider = _widening(len(runs), rng, (curves, draws))
    noise = np.exp(drift * rng.standard_normal((curves, draws)))
    low, high = np.quantile(point * (np.array(ratios) / point) ** wider * noise, _EDGES)
    length = sum(sum(run.drafted) for run in runs) / sum(len(run.drafted) for run in runs)
    return Prediction(round(length), point, float(low), float(high))


def _widening(
    prompts: int, rng: np.random.Generator, shape: tuple[int, ...]
) -> Float64[np.ndarray, "*shape"]:
    """How much further from the middle a bootstrap's draws are to lie: from normal to Student's t.

    The bootstrap takes the spread of the prompts at hand for that of all, and their mean for the
    middle. With n prompts its variance is (n - 1) / n of what it should be, and that spread itself
    varies as a chi-square with n - 1 degrees of freedom does.
    """
    if prompts == 1:  # which tells nothing of a spread
        return np.ones(shape)
    return np.minimum(np.sqrt(prompts / rng.chisquare(prompts - 1, shape)), _WIDEST)


def _check_rounds(runs: Sequence[object]) -> None:
    if not runs:
        raise InvalidSetting(
            "no prompt was decoded",
            why="the rounds of some prompts are what a prediction starts from",
            remedy="pass at least one run with a round",
        )


def _at_lengths(
    runs: Sequence[PromptRun], longest: int
) -> tuple[
    Float64[np.ndarray, "runs lengths drafted"],
    Float64[np.ndarray, "runs lengths"],
]:
    """Of each run at each length: how many rounds drafted 0, 1, ... tokens; tokens emitted."""
    rounds = np.zeros((len(runs), longest + 1, longest + 1))
    tokens = np.zeros((len(runs), longest + 1))
    for i, run in enumerate(runs):
        for length in range(longest + 1):
            replay = Replay(run, longest)
            while tokens[i, length] < run.tokens:
                drafted, accepted = replay.round(length)
                rounds[i, length, drafted] += 1
                tokens[i, length] += accepted + 1
    return rounds, tokens


def _acceptance(runs: Sequence[PromptRun]) -> float | None:
    """The acceptance rate over all rounds of the runs."""
    return PromptRun(tuple(r for run in runs for r in run.rounds)).acceptance
