"""What drafters do on a few prompts: the measurements that `forecast` predicts from.

Each prompt is decoded plainly for a few tokens and then by every drafter, with the adaptive draft
length as it really runs. That gives the rounds, and what passes, drafts and decisions cost where
they are used. A cost curve measured by itself gives the sizes in between. The order of the drafters
rotates, and one that clearly loses is dropped before all prompts are decoded. The best one decodes
them once more at one long draft length: from that record follows every fixed length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median
from typing import TypeAlias

import numpy as np

from draftproof.core import Prompt, Round
from draftproof.engine import Request, Running, decode
from draftproof.errors import InvalidSetting
from draftproof.load import costly_of
from draftproof.planner import (
    AdaptiveRun,
    CostCurve,
    Costs,
    Fixed,
    Measured,
    PromptRun,
    draft_cost,
    measure,
)
from draftproof.ports import Drafter, Joining, LengthPolicy, Lengths, Model
from draftproof.sampling import Sampling, Standardiser

LONGEST = 8  # draft length of the record with a draft model, and the longest predicted
LONGEST_FREE = 16  # the same where drafts cost no passes
SIZES = (*range(1, LONGEST + 2), 13, LONGEST_FREE + 1)  # tokens per pass that are timed
PLAIN_TOKENS = 12
REPEATS = 7  # of the cost curve

LEAST = 3  # prompts before a drafter may be dropped
CLEAR = math.log(1.05)  # it is slower than the best by more than this,
SURE = 3.0  # with so many standard errors to spare
SPREAD = 0.1  # the least standard deviation supposed, of a logarithm of two times' ratio

Tell: TypeAlias = Callable[[str, int, int], None]


@dataclass(slots=True)
class Entrant:
    """A drafter and the rounds that it played with its adaptive length, by prompt.

    `dropped`: it clearly lost before all prompts were decoded.
    """

    name: str
    drafter: Drafter
    lengths: Lengths
    rounds: list[list[Round]] = field(default_factory=list)
    dropped: bool = False

    def paid(self, round: Round) -> int:
        """Drafted tokens of a round that cost what the drafter's tokens cost."""
        if self.drafter.model is None:
            return 0
        if not isinstance(self.drafter, Joining):
            return round.drafted
        name = self.drafter.costly.name
        return sum(guess.source == name for guess in round.guesses)


@dataclass(frozen=True, slots=True)
class Contest:
    """What was measured of a target and drafters.

    Args:
        curve: The target's passes by themselves.
        plain: Rounds of plain decoding.
        entrants: The drafters, in the order given.
    """

    curve: CostCurve
    plain: Sequence[Round]
    entrants: Sequence[Entrant]


@dataclass(frozen=True, slots=True)
class Record:
    """One drafter's runs at a fixed draft length.

    Args:
        costs: Target and drafter in use; the target's seconds include the decision after a pass.
        runs: The rounds of each prompt.
        longest: The draft length.
    """

    costs: Costs
    runs: tuple[PromptRun, ...]
    longest: int


class Adaptive:
    """The adaptive length for requests that are seeded only so that planning decodes alike."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths

    def begin(self, prompt: Prompt, reproducible: bool = False) -> LengthPolicy:
        """As without a seed."""
        return self._lengths.begin(prompt)


def compete(
    target: Model,
    drafters: Mapping[str, Drafter],
    requests: Sequence[Request],
    tokens: int,
    tell: Tell = lambda what, done, total: None,
) -> Contest:
    """Decode the prompts plainly and by every drafter, and time the target's passes.

    Args:
        target: The target.
        drafters: What drafts for it, by name; at least one.
        requests: One per prompt; they are given seeds where they have none, so that planning again
            decodes the same.
        tokens: Tokens of the drafters' runs, at least 1.
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
    steps = len(requests) * len(drafters)
    tell("timing passes", 0, steps)
    curve = measure(target, requests[0].prompt, sizes=SIZES, repeats=REPEATS)
    entrants = [
        Entrant(name, drafter, adaptive(target, drafter, curve, requests[0].prompt))
        for name, drafter in drafters.items()
    ]
    for entrant in entrants:  # warms up the draft and the loop
        play(target, entrant.drafter, requests[0], Fixed(LONGEST), LONGEST + 1)
    plain: list[Round] = []
    for index, request in enumerate(map(seeded, requests, range(len(requests)))):
        done = index * len(drafters)
        plain += play(target, None, request, Fixed(0), min(PLAIN_TOKENS, tokens))
        racing = [entrant for entrant in entrants if not entrant.dropped]
        first = index % len(racing)
        for entrant in (*racing[first:], *racing[:first]):
            tell(f"prompt {index + 1}, {entrant.name}", done, steps)
            entrant.rounds.append(play(target, entrant.drafter, request, entrant.lengths, tokens))
            done += 1
        drop(racing)
    return Contest(curve, plain, entrants)


def adaptive(target: Model, drafter: Drafter, curve: CostCurve, prompt: Prompt) -> Lengths:
    """The drafter's adaptive length, starting from what is measured of it by itself."""
    costly = costly_of(drafter)
    drafts = draft_cost(costly, prompt, Standardiser(Sampling()))
    return Adaptive(Measured(target, costly, costs=Costs(curve, drafts)))


def drop(racing: Sequence[Entrant]) -> None:
    """Mark the entrants that clearly lose against the best of them.

    By the logarithms of the ratios of seconds per token, prompt by prompt: their mean has to be
    above `CLEAR` by `SURE` standard errors. Of 4 drafters as fast as the best, whose ratios deviate
    by `SPREAD`, fewer than one in 1,000 plans drops any.
    """
    if len(racing[0].rounds) < LEAST:
        return
    spent = np.log([[seconds_per_token(rounds) for rounds in e.rounds] for e in racing])
    behind = spent - spent[spent.mean(axis=1).argmin()]
    error = np.maximum(behind.std(axis=1, ddof=1), SPREAD) / math.sqrt(behind.shape[1])
    for entrant, lost in zip(racing, behind.mean(axis=1) > CLEAR + SURE * error, strict=True):
        entrant.dropped = bool(lost)


def seconds_per_token(rounds: Sequence[Round]) -> float:
    """Of one run, as long as it took."""
    seconds = sum(r.seconds for r in rounds)
    return max(seconds, 1e-9) / sum(r.emitted for r in rounds)


def record(
    target: Model,
    contest: Contest,
    entrant: Entrant,
    requests: Sequence[Request],
    tokens: int,
    tell: Tell = lambda what, done, total: None,
) -> Record:
    """Decode the prompts once more by one drafter, at one long draft length.

    The arguments are those of `compete`, and what it returned.
    """
    longest = LONGEST_FREE if entrant.drafter.model is None else LONGEST
    drafted = []
    for index, request in enumerate(map(seeded, requests, range(len(requests)))):
        tell(f"prompt {index + 1}, {entrant.name} at length {longest}", index, len(requests))
        drafted.append(play(target, entrant.drafter, request, Fixed(longest), tokens))
    wide = [r for rounds in drafted for r in rounds if r.drafted]
    samples = [
        sum(r.draft_seconds for r in rounds) / count
        for rounds in drafted
        if (count := sum(r.drafted for r in rounds))
    ]  # rounds that found no draft are charged, too
    costs = Costs(in_use(contest.curve, contest.plain, wide), tuple(samples) or (0.0,))
    return Record(costs, tuple(map(prompt_run, drafted)), longest)


def seeded(request: Request, seed: int) -> Request:
    """The request with a seed; "auto" means what it does without one."""
    if request.seed is not None:
        return request
    return replace(request, seed=seed, rule="block" if request.rule == "auto" else request.rule)


def play(
    target: Model, drafter: Drafter | None, request: Request, lengths: Lengths, tokens: int
) -> list[Round]:
    """The rounds of one request until so many tokens are written.

    It may go on as far as the request says: what pays in a long answer is done in this one, too.
    """
    most = max(tokens, request.limits.max_tokens)
    limits = replace(request.limits, max_tokens=most, min_tokens=0)
    running = Running(replace(request, limits=limits), target, None, drafter, lengths)
    with closing(decode([running])) as written:
        for _ in islice(written, tokens):
            pass
    return running.rounds


def prompt_run(rounds: Sequence[Round]) -> PromptRun:
    """Drafted and accepted tokens by round; what the output's end cut off counts as rejected."""
    return PromptRun(tuple((r.drafted, r.emitted - 1) for r in rounds))


def adaptive_runs(entrant: Entrant) -> list[AdaptiveRun]:
    """An entrant's rounds, by prompt, as far as a prediction needs them."""
    return [
        AdaptiveRun(
            drafted=tuple(r.drafted for r in rounds),
            paid=sum(map(entrant.paid, rounds)),
            free_seconds=sum(r.draft_seconds for r in rounds if not entrant.paid(r)),
            tokens=sum(r.emitted for r in rounds),
        )
        for rounds in entrant.rounds
    ]


def adaptive_costs(contest: Contest, entrant: Entrant) -> Costs:
    """Target and drafter in use; the draft's cost, by prompt, is that of a token paid for."""
    wide = [r for rounds in entrant.rounds for r in rounds if r.drafted]
    samples = [
        sum(r.draft_seconds for r in rounds if entrant.paid(r)) / paid
        for rounds in entrant.rounds
        if (paid := sum(map(entrant.paid, rounds)))
    ]
    return Costs(in_use(contest.curve, contest.plain, wide), tuple(samples) or (0.0,))


def in_use(curve: CostCurve, plain: Sequence[Round], wide: Sequence[Round]) -> CostCurve:
    """The curve as decoding meets it: its passes between drafts, and the decision after each.

    Passes of one token follow the plain runs, larger ones the drafted rounds (a draft model that
    ran in between has pushed the target's weights out of the caches). The decision grows with the
    number of rows.
    """
    narrow = median(r.score_seconds / curve(r.scored) for r in plain)
    broad = median(r.score_seconds / curve(r.scored) for r in wide) if wide else narrow
    least = median(r.verify_seconds for r in plain)
    per_row = [max(0.0, r.verify_seconds - least) / r.drafted for r in wide]
    slope = median(per_row) if per_row else 0.0

    def scale(row: Sequence[float]) -> tuple[float, ...]:
        return tuple(
            seconds * (narrow if n == 1 else broad) + least + slope * (n - 1)
            for n, seconds in zip(curve.sizes, row, strict=True)
        )

    return CostCurve(curve.sizes, scale(curve.seconds), tuple(map(scale, curve.samples)))
