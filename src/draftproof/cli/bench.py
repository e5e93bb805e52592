"""`draftproof bench`: measured costs and speeds, with where they come from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from draftproof.backends.info import FIELDS
from draftproof.bench.curve import curve as measure_curve
from draftproof.bench.curve import report
from draftproof.bench.modes import MODES, parse_modes, speculators
from draftproof.bench.prompts import encode, read_prompts
from draftproof.bench.provenance import check_output, provenance, write_result
from draftproof.bench.speed import Tell, comparable, measure, speculator_mode, summarise
from draftproof.cli.models import DownloadBar
from draftproof.cli.options import (
    draft_option,
    law_options,
    placement_options,
    prompts_options,
    result_options,
    split,
    target_option,
    target_placement_options,
    verify_option,
)
from draftproof.load import costly_of, load_parts

OWN = (
    "prompts",
    "limit",
    "raw",
    "modes",
    "draft_length",
    "max_tokens",
)  # what only `bench speed` has


@click.group()
def bench() -> None:
    """Measure what passes cost, and how fast each way to decode is."""


@bench.command()
@target_option
@target_placement_options
@click.option(
    "--context",
    type=int,
    default=128,
    show_default=True,
    help="Tokens in the cache before each timed pass.",
)
@click.option(
    "--repeats", type=int, default=15, show_default=True, help="Timed passes of each size."
)
@result_options
def curve(
    target: str, context: int, repeats: int, output: Path | None, as_json: bool, **placement: Any
) -> None:
    """Milliseconds of a pass over n = 1, 2, 3, 4, 6, 8, 12 and 16 tokens.

    Medians over the repeats. Where 8 tokens cost about what one does, drafts are nearly free to
    check.
    """
    check_output(output)
    with DownloadBar() as bar:
        parts = load_parts(target, progress=bar, **placement)
    measured = measure_curve(parts.target, parts.tokenizer, context=context, repeats=repeats)
    result = report(target, parts.target, measured, context)
    result["provenance"] = provenance({"target": target}, {"target": parts.target})
    finish("curve", result, output, None if as_json else show_curve)


@bench.command()
@target_option
@draft_option
@placement_options
@prompts_options
@click.option("--limit", type=int, help="Take the first so many prompts.")
@click.option(
    "--modes",
    help=f"What to compare, of {', '.join(MODES)}; plain always runs. By default all, but for "
    "draft where there is none.",
)
@click.option(
    "--draft-length",
    type=int,
    default=3,
    show_default=True,
    help="Tokens per round in the mode draft; the other modes choose their own.",
)
@click.option(
    "--max-tokens", type=int, default=64, show_default=True, help="Most tokens per prompt."
)
@click.option("--seed", type=int, help="Makes sampled outputs comparable.")
@law_options
@verify_option
@result_options
def speed(as_json: bool, output: Path | None, **given: Any) -> None:
    """Tokens per second of each mode, over the same prompts.

    Prompt by prompt each mode runs once, in rotating order. The speed-up is over plain decoding,
    without the reading of the prompt, with a 95 % interval from a bootstrap over the prompts.
    """
    check_output(output)
    own = {name: given.pop(name) for name in OWN}
    loading, options = split(given)
    target, draft = loading["target"], loading["draft"]
    names = parse_modes(own["modes"], draft is not None)
    prompts = read_prompts(own["prompts"], own["limit"])
    with DownloadBar() as bar:
        parts = load_parts(loading.pop("target"), drafter="mix", progress=bar, **loading)
    alone = None if parts.draft is None else costly_of(parts.draft)
    ids = encode(prompts, parts.tokenizer, own["raw"])
    made = speculators(parts.target, parts.tokenizer, alone, names, own["draft_length"])
    with progress() as tell:
        runs = measure(
            [speculator_mode(name, made[name], options) for name in names],
            ids,
            own["max_tokens"],
            tell,
        )
    scorer = parts.target if options["temperature"] == 0 else None
    result = {
        "target": target,
        "draft": draft,
        "prompts": [prompt.name for prompt in prompts],
        "raw": own["raw"],
        "max_tokens": own["max_tokens"],
        "draft_length": own["draft_length"],
        "options": options,
        "modes": summarise(runs, ids, comparable=comparable(options), scorer=scorer),
        "provenance": provenance(
            {"target": target, "draft": draft},
            {"target": parts.target, "draft": parts.draft.model if parts.draft else None},
        ),
    }
    finish("speed", result, output, None if as_json else show_speed)


def finish(
    name: str,
    result: dict[str, Any],
    output: Path | None,
    show: Callable[[dict[str, Any]], None] | None,
) -> None:
    """Write the result and print it, as JSON or by `show`, the second even if the first fails."""
    try:
        path = write_result(name, result, output)
        if path is not None:
            click.echo(f"written to {path}", err=True)
    finally:
        if show is None:
            click.echo(json.dumps(result, ensure_ascii=False))
        else:
            show(result)


@contextmanager
def progress() -> Iterator[Tell]:
    """A bar on standard error that counts the runs; nothing where that is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None)

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield tell


def show_curve(result: dict[str, Any]) -> None:
    """The curve as a table."""
    told = {name: result[name] for name in FIELDS if result[name] is not None}
    title = ", ".join(f"{name} {value}" for name, value in told.items())
    table = Table(
        "n", "ms", "fastest", "slowest", "times n = 1", title=f"{result['model']}: {title}"
    )  # fmt: skip
    columns = ("n", "ms", "ms_fastest", "ms_slowest", "ratio")
    for n, *times, ratio in zip(*(result[column] for column in columns), strict=True):
        table.add_row(str(n), *(f"{ms:.2f}" for ms in times), f"{ratio:.2f}")
    Console().print(table)


def show_speed(result: dict[str, Any]) -> None:
    """The modes as a table, and each difference from plain."""
    console = Console()
    table = Table(
        "mode", "tokens/s", "speed-up", "95 %", "whole", "a round", "accepted", "same",
        title=f"{result['target']}, {len(result['prompts'])} prompts, "
        f"at most {result['max_tokens']} tokens",
    )  # fmt: skip
    for name, mode in result["modes"].items():
        interval = "" if mode["speedup_low"] is None else (
            f"{mode['speedup_low']:.2f}–{mode['speedup_high']:.2f}"
        )  # fmt: skip
        table.add_row(
            name,
            f"{mode['tokens_per_second']:.2f}",
            f"{mode['speedup']:.2f}",
            interval,
            f"{mode['total_speedup']:.2f}",
            f"{mode['tokens_per_round']:.2f}",
            "" if mode["acceptance"] is None else f"{mode['acceptance']:.0%}",
            {True: "yes", False: "no", None: ""}[mode["identical"]],
        )
    console.print(table)
    for name, mode in result["modes"].items():
        for entry in mode["different"] or ():
            gap = entry["margin"]
            by = "" if gap is None else f"; the target prefers plain's token by {gap:.4f} in log p"
            console.print(
                f"{name} leaves plain's text in prompt {entry['prompt']} "
                f"at token {entry['position']}{by}"
            )
