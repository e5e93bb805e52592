"""`draftproof plan`: will speculation pay, on this pair and this machine?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from draftproof.bench.advice import Memory, advise, memory
from draftproof.bench.plan import Forecast, Measured, forecast, measure_pair
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
    """Predict the speed-up, from measured costs and acceptance, and say whether to use it.

    Decodes a few tokens of each prompt, plainly and with drafts, and times the target's passes.
    The intervals hold 95 % of what measuring the speed-up on such prompts would give.
    """
    texts = read_prompts(prompts, limit)
    subject = load_subject(output, given, draft_length=0)
    speculator, drafter = subject.speculator, subject.speculator.drafter
    if drafter is None:
        raise InvalidSetting(
            "there is no drafter to plan for",
            why="plain decoding is what a speed-up is measured against",
            remedy="name a --draft, or a --drafter other than none",
        )
    assert speculator.tokenizer is not None  # a model that was loaded by name has one
    ids = encode(texts, speculator.tokenizer, raw)
    requests = [subject.request(prompt) for prompt in ids]
    with progress() as tell:
        measured = measure_pair(speculator.target, drafter, requests, max_tokens, tell)
    expected = forecast(measured)
    there = memory(speculator.target, drafter, context)
    names = [prompt.name for prompt in texts]
    result = report(measured, expected, there, names)
    result = {
        "target": speculator.target.name,
        "drafter": drafter.name,
        "options": subject.options,
        **result,
        "provenance": subject.provenance(),
    }
    finish("plan", result, output, None if as_json else lambda shown: show(shown, there))


def report(
    measured: Measured, expected: Forecast, there: Memory, names: list[str]
) -> dict[str, Any]:
    """What `--json` prints."""
    use, advice = advise(measured, expected, there)
    fixed, auto, curve = expected.fixed, expected.auto, measured.costs.curve
    return {
        "pass_ms": {str(n): 1000 * curve(n) for n in curve.sizes},
        "draft_ms": 1000 * measured.costs.draft_seconds,
        "cost_ratio": measured.costs.ratio,
        "acceptance": {
            "overall": fixed.acceptance,
            "low": fixed.acceptance_low,
            "high": fixed.acceptance_high,
            "by_prompt": {
                name: run.acceptance for name, run in zip(names, measured.runs, strict=True)
            },
        },
        "predicted": [
            {"draft_length": p.length, "speedup": p.speedup, "low": p.low, "high": p.high}
            for p in fixed.predictions
        ],
        "best_draft_length": fixed.best.length,
        "auto_draft_length": expected.auto_length,
        "speedup": auto.speedup,
        "speedup_low": auto.low,
        "speedup_high": auto.high,
        "memory": there.to_json(),
        "advice": advice,
        "use": use,
    }


def show(result: dict[str, Any], there: Memory) -> None:
    """The plan for a person: costs, acceptance, predictions, memory and the advice."""
    console = Console(highlight=False)
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
