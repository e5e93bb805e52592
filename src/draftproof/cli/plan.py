"""`draftproof plan`: will speculation pay on this machine, and with which drafter?"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console
from rich.table import Table

from draftproof.bench.advice import Memory, advise, memory
from draftproof.bench.forecast import Standing, at_fixed_lengths, first_that_fits, ranked
from draftproof.bench.modes import contenders
from draftproof.bench.plan import Record, compete, record
from draftproof.bench.prompts import encode, read_prompts
from draftproof.cli.bench import finish, progress
from draftproof.cli.options import (
    draft_option,
    drafter_option,
    law_options,
    placement_options,
    prompts_options,
    result_options,
    target_option,
    verify_option,
)
from draftproof.cli.progress import load_subject
from draftproof.errors import InvalidSetting
from draftproof.load import WITH_MODEL, DrafterName

MODELLESS = frozenset(get_args(DrafterName)) - frozenset(WITH_MODEL)


@click.command()
@target_option
@draft_option
@drafter_option
@placement_options
@law_options
@verify_option
@prompts_options
@click.option("--limit", type=int, default=8, show_default=True, help="Most prompts to take.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=48,
    show_default=True,
    help="Most tokens per prompt to measure with.",
)
@click.option(
    "--context",
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    help="Tokens of prompt and output that memory is planned for.",
)
@result_options
def plan(
    prompts: Path | None,
    limit: int,
    raw: bool,
    max_tokens: int,
    context: int,
    output: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Predict the speed-up, from measured costs and acceptance, and say what drafter to use.

    Times the target's passes and decodes each prompt: a few tokens plainly, up to --max-tokens with
    each drafter that applies (mix, model, suffix, lookup and ngram with a --draft, else the last
    three, or the one named by --drafter), and once more with the best. Expect the time of decoding
    (drafters + 2) x --limit x --max-tokens tokens; drafters that clearly lose are dropped from the
    fourth prompt on.

    The intervals hold 95 % of what measuring the speed-up on such prompts would give.
    """
    texts = read_prompts(prompts, limit)
    chosen = given["drafter"] or (given["draft"] if given["draft"] in MODELLESS else None)
    subject = load_subject(output, given, draft_length=0)
    speculator, target = subject.speculator, subject.speculator.target
    if speculator.drafter is None:
        raise InvalidSetting(
            "there is no drafter to plan for",
            why="plain decoding is what a speed-up is measured against",
            remedy="name a --draft, or a --drafter other than none",
        )
    assert speculator.tokenizer is not None  # a model that was loaded by name has one
    ids = encode(texts, speculator.tokenizer, raw)
    requests = [subject.request(prompt) for prompt in ids]
    drafters = contenders(speculator, chosen)
    rooms = {name: memory(target, drafter, context) for name, drafter in drafters.items()}
    with progress() as tell:
        contest = compete(target, drafters, requests, max_tokens, tell)
        standings = ranked(contest)
        best = first_that_fits(standings, [rooms[s.name].fits for s in standings])
        entrant = next(e for e in contest.entrants if e.name == best.name)
        recorded = record(target, contest, entrant, requests, max_tokens, tell)
    names = [prompt.name for prompt in texts]
    result = report(recorded, best, standings, rooms, names)
    result = {
        "target": target.name,
        "drafter": entrant.drafter.name,
        "options": subject.options,
        **result,
        "provenance": subject.provenance(),
    }
    there = rooms[best.name]
    finish("plan", result, output, None if as_json else lambda shown: show(shown, there))


def report(
    recorded: Record,
    best: Standing,
    standings: list[Standing],
    rooms: dict[str, Memory],
    names: list[str],
) -> dict[str, Any]:
    """What `--json` prints; but for `drafters` and `recommended` it is about the best drafter."""
    fixed, curve = at_fixed_lengths(recorded), recorded.costs.curve
    others = [s for s in standings if s is not best]
    use, advice = advise(recorded, fixed, best, others, rooms[best.name])
    return {
        "drafters": [{**s.to_json(), "fits": rooms[s.name].fits} for s in standings],
        "recommended": best.name if use else "none",
        "pass_ms": {str(n): 1000 * curve(n) for n in curve.sizes},
        "draft_ms": 1000 * recorded.costs.draft_seconds,
        "cost_ratio": recorded.costs.ratio,
        "acceptance": {
            "overall": fixed.acceptance,
            "low": fixed.acceptance_low,
            "high": fixed.acceptance_high,
            "by_prompt": {
                name: run.acceptance for name, run in zip(names, recorded.runs, strict=True)
            },
        },
        "predicted": [
            {"draft_length": p.length, "speedup": p.speedup, "low": p.low, "high": p.high}
            for p in fixed.predictions
        ],
        "best_draft_length": fixed.best.length,
        "auto_draft_length": best.draft_length,
        "speedup": best.speedup,
        "speedup_low": best.low,
        "speedup_high": best.high,
        "memory": rooms[best.name].to_json(),
        "advice": advice,
        "use": use,
    }


def show(result: dict[str, Any], there: Memory) -> None:
    """The plan for a person: the drafters, then the best one's figures, and the advice."""
    console = Console(highlight=False)
    console.print(drafters_table(result))
    passes = ", ".join(f"{n}: {ms:.1f}" for n, ms in result["pass_ms"].items())
    console.print(f"{result['target']}, drafts by {result['drafter']}")
    console.print(f"a pass over n tokens takes, in ms: {passes}")
    console.print(
        f"drafting a token takes {result['draft_ms']:.2f} ms, c = {result['cost_ratio']:.3f}"
    )
    rates = result["acceptance"]
    if rates["overall"] is None:
        console.print("nothing was drafted")
    else:
        by_prompt = ", ".join(
            f"{name} {'none drafted' if rate is None else format(rate, '.0%')}"
            for name, rate in rates["by_prompt"].items()
        )
        console.print(
            f"acceptance {rates['overall']:.0%} ({rates['low']:.0%} to {rates['high']:.0%}): "
            f"{by_prompt}"
        )
    table = Table("draft length", "speed-up", "95 % interval")
    rows = [
        (str(p["draft_length"]), p["speedup"], p["low"], p["high"]) for p in result["predicted"]
    ]
    rows.append(("auto", result["speedup"], result["speedup_low"], result["speedup_high"]))
    for length, value, low, high in rows:
        table.add_row(length, f"{value:.2f}", f"{low:.2f} to {high:.2f}")
    console.print(table)
    console.print(f"best fixed draft length: {result['best_draft_length']}")
    console.print(f"memory: {there.describe()}")
    console.print(result["advice"])


def drafters_table(result: dict[str, Any]) -> Table:
    """What is expected of each drafter with its adaptive length."""
    table = Table("drafter", "speed-up", "95 % interval", "accepted", "per round", "drafted")
    for entry in result["drafters"]:
        rate = entry["acceptance"]
        dropped = f", dropped after {entry['prompts']}" if entry["dropped"] else ""
        table.add_row(
            entry["name"] + dropped,
            f"{entry['speedup']:.2f}",
            f"{entry['low']:.2f} to {entry['high']:.2f}",
            "" if rate is None else f"{rate:.0%}",
            f"{entry['tokens_per_round']:.2f}",
            f"{entry['draft_length']:.1f}",
        )
    return table
