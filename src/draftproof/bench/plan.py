"""The speed-up of a pair on this machine before it is used: measured costs, measured acceptance.

Each prompt is decoded plainly for a few tokens and speculatively, at one long draft length, for
more. That gives the acceptance, and what passes, drafts and decisions cost where they are used. A
cost curve measured by itself gives the sizes in between. `planner.predict` makes the speed-up at
each fixed length of it; `auto` is predicted by playing the policy against the recorded rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeAlias

import numpy as np

from draftproof.core import Round
from draftproof.engine import Request, Running, decode
from draftproof.errors import InvalidSetting
from draftproof.planner import (
    Auto,
    CostCurve,
    Costs,
    Fixed,
    Plan,
    Prediction,
    PromptRun,
    Replay,
    measure,
    predict,
)
from draftproof.ports import Drafter, Model

LONGEST = 8  # draft length of the measured runs with a draft model, and the longest predicted
LONGEST_FREE = 16  # the same where drafts cost no passes
PLAIN_TOKENS = 12
REPEATS = 7  # of the cost curve
DRIFT = 0.04  # relative standard deviation of a speed-up measured again on the same machine
CURVES = 40  # draws of the costs for the interval of `auto`
DRAWS = 25  # draws of the prompts for each of them
EDGES = (0.025, 0.975)

Tell: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a pair.

    Args:
        costs: Target and drafter in use; the target's seconds include the decision after a pass.
        runs: The rounds of each prompt's speculative run.
        tokens: Most tokens of each.
        longest: Their draft length.
    """

    costs: Costs
    runs: tuple[PromptRun, ...]
    tokens: int
    longest: int


@dataclass(slots=True)
class Accounts:
    """The rounds played so far: plain ones, and by prompt the speculative ones."""

    plain: list[Round] = field(default_factory=list)
    drafted: list[list[Round]] = field(default_factory=list)


def measure_pair(
    target: Model,
    drafter: Drafter,
    requests: Sequence[Request],
    tokens: int,
    tell: Tell = lambda what, done, total: None,
) -> Measured:
    """Decode the prompts in both ways and time the target's passes.

    Args:
        target: The target.
        drafter: What drafts for it.
        requests: One per prompt; the limits' `max_tokens` are replaced, and the seeds where none
            is given, so that planning again decodes the same.
        tokens: Tokens of the speculative runs, at least 1.
        tell: Told what runs next, how much is done, and of how much.

    Raises:
        InvalidSetting: There is no prompt.
    """
    if not requests:
        raise InvalidSetting(
            "there is no prompt to plan with",
            why="acceptance is measured by decoding",
            remedy="set --limit to 1 or more",
        )
    longest = LONGEST_FREE if drafter.model is None else LONGEST
    steps = len(requests) + 1
    tell("timing passes", 0, steps)
    curve = measure(target, requests[0].prompt, sizes=sizes(longest), repeats=REPEATS)
    play(target, drafter, requests[0], longest, longest + 1)  # warms up the draft and the loop
    accounts = Accounts()
    for index, request in enumerate(map(seeded, requests, range(len(requests)))):
        tell(f"decoding prompt {index + 1}", index + 1, steps)
        accounts.plain += play(target, None, request, 0, min(PLAIN_TOKENS, tokens))
        accounts.drafted.append(play(target, drafter, request, longest, tokens))
    costs = Costs(in_use(curve, accounts), draft_samples(accounts))
    return Measured(costs, tuple(map(prompt_run, accounts.drafted)), tokens, longest)


def seeded(request: Request, seed: int) -> Request:
    """The request with a seed; "auto" means what it does without one."""
    if request.seed is not None:
        return request
    return replace(request, seed=seed, rule="block" if request.rule == "auto" else request.rule)


def sizes(longest: int) -> tuple[int, ...]:
    """Tokens per pass that are timed: every draft length to `LONGEST`, and every fourth beyond."""
    return (*range(1, LONGEST + 2), *range(LONGEST + 5, longest + 2, 4))


def play(
    target: Model, drafter: Drafter | None, request: Request, length: int, tokens: int
) -> list[Round]:
    """The rounds of one request at a fixed draft length."""
    limits = replace(request.limits, max_tokens=tokens, min_tokens=0)
    running = Running(replace(request, limits=limits), target, None, drafter, Fixed(length))
    for _ in decode([running]):
        pass
    return running.rounds


def prompt_run(rounds: Sequence[Round]) -> PromptRun:
    """Drafted and accepted tokens by round; what the output's end cut off counts as rejected."""
    return PromptRun(tuple((r.drafted, r.emitted - 1) for r in rounds))


def in_use(curve: CostCurve, accounts: Accounts) -> CostCurve:
    """The curve as decoding meets it: its passes between drafts, and the decision after each.

    Passes of one token follow the plain runs, larger ones the speculative runs (a draft model that
    ran in between has pushed the target's weights out of the caches). The decision grows with the
    number of rows.
    """
    wide = [r for rounds in accounts.drafted for r in rounds if r.drafted]
    single = accounts.plain
    narrow = median(r.score_seconds / curve(r.scored) for r in single)
    broad = median(r.score_seconds / curve(r.scored) for r in wide) if wide else narrow
    least = median(r.verify_seconds for r in single)
    per_row = [max(0.0, r.verify_seconds - least) / r.drafted for r in wide]
    slope = median(per_row) if per_row else 0.0

    def scale(row: Sequence[float]) -> tuple[float, ...]:
        return tuple(
            seconds * (narrow if n == 1 else broad) + least + slope * (n - 1)
            for n, seconds in zip(curve.sizes, row, strict=True)
        )

    return CostCurve(curve.sizes, scale(curve.seconds), tuple(map(scale, curve.samples)))


def draft_samples(accounts: Accounts) -> tuple[float, ...]:
    """Seconds per drafted token, by prompt; rounds that found no draft are charged, too."""
    samples = [
        sum(r.draft_seconds for r in rounds) / drafted
        for rounds in accounts.drafted
        if (drafted := sum(r.drafted for r in rounds))
    ]
    return tuple(samples) or (0.0,)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The prediction: fixed draft lengths, and `auto`, with the length that it uses on average."""

    fixed: Plan
    auto: Prediction
    auto_length: float


def forecast(measured: Measured, seed: int = 0) -> Forecast:
    """Predict from what was measured; the seed draws the intervals' resamples."""
    dice = np.random.default_rng(seed)
    fixed = predict(measured.costs, measured.runs, dice, drift=DRIFT)
    runs = [run for run in measured.runs if run.rounds]
    longest, most = measured.longest, measured.tokens
    seconds, tokens, mean_length = simulate(measured.costs, runs, most, longest)
    plain = measured.costs.curve(1)
    value = plain * tokens.sum() / seconds.sum()
    draws = []
    for _ in range(CURVES):
        costs = measured.costs.resampled(dice)
        drawn_seconds, drawn_tokens, _ = simulate(costs, runs, most, longest)
        for _ in range(DRAWS):
            picks = dice.integers(len(runs), size=len(runs))
            ratio = costs.curve(1) * drawn_tokens[picks].sum() / drawn_seconds[picks].sum()
            draws.append(ratio * np.exp(DRIFT * dice.standard_normal()))
    low, high = np.quantile(draws, EDGES)
    auto = Prediction(round(mean_length), float(value), float(low), float(high))
    return Forecast(fixed, auto, mean_length)


def simulate(
    costs: Costs, runs: Sequence[PromptRun], tokens: int, longest: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Play `auto` against recorded runs (`planner.replay`).

    Returns:
        Seconds by run, emitted tokens by run, and the mean draft length over all rounds.
    """
    seconds, emitted = np.zeros(len(runs)), np.zeros(len(runs))
    lengths: list[int] = []
    for i, run in enumerate(runs):
        policy = Auto(costs, limit=longest).begin(())
        replay = Replay(run, longest)
        while emitted[i] < min(tokens, run.tokens):
            length = policy.length()
            drafted, accepted = replay.round(length)
            account = Round(
                drafted=drafted,
                accepted=accepted,
                emitted=accepted + 1,
                draft_seconds=drafted * costs.draft_seconds,
                score_seconds=costs.curve(drafted + 1),
                verify_seconds=0.0,
            )
            policy.observe(account)
            seconds[i] += account.seconds
            emitted[i] += account.emitted
            lengths.append(length)
    return seconds, emitted, float(np.mean(lengths))
