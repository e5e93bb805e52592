"""The speed of several ways to decode, measured side by side.

A mode is a name and a function from a prompt to its output and seconds, so that other systems can
be measured by the same procedure (`benchmarks/peers`). Prompt by prompt every mode runs once, and
the order rotates, so that a machine that heats up or is shared favours none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Literal, TypeAlias

import numpy as np

from draftproof.bench.bootstrap import Counts, Seconds, SpeedUp, speed_up
from draftproof.core import Prompt, shared_length
from draftproof.engine import Speculator, Stats
from draftproof.ports import Model
from draftproof.sampling import log_softmax

PLAIN = "plain"
WARM_UP = 8  # tokens: enough to touch every weight and every code path once

Clock: TypeAlias = Literal["decode", "total"]
Tell: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt in one mode.

    `total_seconds` is the wall time from the prompt's ids to the last token; `decode_seconds` is
    that less the reading of the prompt by target and draft. `stats` where rounds were played.
    """

    ids: tuple[int, ...]
    decode_seconds: float
    total_seconds: float
    stats: Stats | None = None


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to decode: called with a prompt's ids and the most tokens to emit."""

    name: str
    run: Callable[[tuple[int, ...], int], Run]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an output leaves the plain one.

    `margin` is how much more probable the target finds plain's token than the one chosen, as a
    difference of log-probabilities from one pass of its own over the common text. A margin near
    zero is a near-tie that rounding decided; None where an output ended or tokens were sampled.
    """

    prompt: int
    position: int
    margin: float | None


def speculator_mode(name: str, speculator: Speculator, options: Mapping[str, Any]) -> Mode:
    """The mode that generates with `speculator` and these options of `generate`."""

    def run(prompt: tuple[int, ...], max_tokens: int) -> Run:
        started = perf_counter()
        stream = speculator.stream(prompt, max_tokens=max_tokens, **options)
        for _ in stream:
            pass
        total = perf_counter() - started
        result = stream.result
        decode = total - result.stats.prefill_seconds
        return Run(result.token_ids, decode, total, result.stats)

    return Mode(name, run)


def measure(
    modes: Sequence[Mode],
    prompts: Sequence[tuple[int, ...]],
    max_tokens: int,
    tell: Tell = lambda what, done, total: None,
) -> dict[str, list[Run]]:
    """Run every mode on every prompt, after a short untimed run of each.

    Args:
        modes: The order of the first prompt; it moves on by one with each prompt.
        prompts: Token ids.
        max_tokens: Most tokens to emit, at least 1.
        tell: Told what runs next, how many runs are done, and how many there are.
    """
    total = len(prompts) * len(modes)
    for mode in modes:
        tell(f"warming up {mode.name}", 0, total)
        mode.run(prompts[0], min(WARM_UP, max_tokens))
    runs: dict[str, list[Run]] = {mode.name: [] for mode in modes}
    done = 0
    for index, prompt in enumerate(prompts):
        first = index % len(modes)
        for mode in (*modes[first:], *modes[:first]):
            tell(f"prompt {index + 1}, {mode.name}", done, total)
            runs[mode.name].append(mode.run(prompt, max_tokens))
            done += 1
    return runs


def compare(runs: Sequence[Run], base: Sequence[Run], clock: Clock) -> SpeedUp:
    """The speed-up of `runs` over `base`, prompt by prompt the same."""
    return speed_up(_seconds(base, clock), _tokens(base), _seconds(runs, clock), _tokens(runs))


def differences(
    runs: Sequence[Run],
    base: Sequence[Run],
    prompts: Sequence[Prompt],
    scorer: Model | None,
) -> list[Difference]:
    """Where outputs differ from the base's, at most once per prompt.

    Args:
        runs: A mode's, by prompt.
        base: Plain decoding's.
        prompts: The prompts.
        scorer: Gives the margins; None for no margins (sampled output has none).
    """
    found = []
    for index, (run, plain) in enumerate(zip(runs, base, strict=True)):
        if run.ids == plain.ids:
            continue
        position = shared_length(run.ids, plain.ids)
        gap = None
        if scorer is not None and position < min(len(run.ids), len(plain.ids)):
            both = plain.ids[position], run.ids[position]
            gap = margin(scorer, prompts[index], plain.ids[:position], *both)
        found.append(Difference(index, position, gap))
    return found


def margin(
    target: Model, prompt: Prompt, output: tuple[int, ...], plain: int, chosen: int
) -> float:
    """By how much the target prefers `plain` to `chosen` after `output`, in log-probability.

    By its own law, in one pass over the whole text, which may round otherwise than either run did.
    """
    session = target.open(prompt)
    try:
        logits = session.score((*session.prefix, *output), keep=1)
    finally:
        session.close()
    logs = log_softmax(logits[0])
    return float(logs[plain] - logs[chosen])


def summarise(
    runs: Mapping[str, Sequence[Run]],
    prompts: Sequence[Prompt],
    *,
    comparable: bool,
    scorer: Model | None,
) -> dict[str, dict[str, Any]]:
    """What `bench speed` reports of each mode.

    Args:
        runs: By mode, "plain" among them.
        prompts: The prompts.
        comparable: Whether every mode should give plain's ids: greedy, or a seed with the coupled
            rule. Where not, `identical` and `different` are None.
        scorer: Gives the margins of `different`.
    """
    base = runs[PLAIN]
    report = {}
    for name, mode_runs in runs.items():
        faster, sooner = (compare(mode_runs, base, clock) for clock in ("decode", "total"))
        account = counts(mode_runs)
        unlike = differences(mode_runs, base, prompts, scorer) if comparable else None
        per_round = account["tokens_per_round"]
        report[name] = {
            "tokens_per_second": rate(mode_runs, "decode"),
            "total_tokens_per_second": rate(mode_runs, "total"),
            "speedup": faster.value,
            "speedup_low": faster.low,
            "speedup_high": faster.high,
            "total_speedup": sooner.value,
            "total_speedup_low": sooner.low,
            "total_speedup_high": sooner.high,
            "tokens_per_round": per_round,
            "acceptance": account["acceptance"],
            "efficiency": faster.value / per_round if per_round else None,
            "identical": None if unlike is None else not unlike,
            "different": None if unlike is None else [asdict(d) for d in unlike],
            **{key: account[key] for key in ("rounds", "drafted", "accepted", "seconds")},
            "reasons": account["reasons"],
            "prompts": by_prompt(mode_runs),
        }
    return report


def comparable(options: Mapping[str, Any]) -> bool:
    """Whether these options of `generate` promise the same ids in every mode."""
    if options.get("temperature", 0.0) == 0:
        return True
    return options.get("seed") is not None and options.get("verify", "auto") in ("auto", "coupled")


def rate(runs: Sequence[Run], clock: Clock) -> float:
    """Tokens per second over all runs."""
    return float(_tokens(runs).sum() / _seconds(runs, clock).sum())


def counts(runs: Sequence[Run]) -> dict[str, Any]:
    """The engine's own account, added up; None where nothing can be said."""
    stats = [run.stats for run in runs if run.stats is not None]
    rounds = sum(s.rounds for s in stats)
    drafted = sum(s.drafted for s in stats)
    accepted = sum(s.accepted for s in stats)
    parts = ("prefill", "draft", "score", "verify")
    return {
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "tokens_per_round": sum(s.emitted for s in stats) / rounds if rounds else None,
        "acceptance": accepted / drafted if drafted else None,
        "seconds": {part: sum(getattr(s, f"{part}_seconds") for s in stats) for part in parts},
        "reasons": [
            {"prompt": index, "reason": reason}
            for index, run in enumerate(runs)
            for reason in (run.stats.reasons if run.stats is not None else ())
        ],
    }


def by_prompt(runs: Sequence[Run]) -> list[dict[str, float]]:
    """The raw figures, from which every other can be had again."""
    return [
        {
            "tokens": len(run.ids),
            "decode_seconds": run.decode_seconds,
            "total_seconds": run.total_seconds,
        }
        for run in runs
    ]


def _seconds(runs: Sequence[Run], clock: Clock) -> Seconds:
    return np.array([getattr(run, f"{clock}_seconds") for run in runs], dtype=np.float64)


def _tokens(runs: Sequence[Run]) -> Counts:
    return np.array([len(run.ids) for run in runs], dtype=np.int64)
