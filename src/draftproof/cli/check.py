"""`draftproof check`: is speculation exact on this pair, with these settings?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from draftproof.bench.check import LAW_LENGTH, LENGTHS, Check
from draftproof.bench.finding import Finding
from draftproof.bench.prompts import read_prompts
from draftproof.cli.bench import finish
from draftproof.cli.options import (
    law_options,
    pair_options,
    result_options,
    verify_option,
)
from draftproof.cli.progress import Subject, load_subject
from draftproof.core import Rule
from draftproof.errors import InvalidSetting

FAILED = 1

# Short and open: many continuations are likely, so that few tokens tell two laws apart, and they
# share their first ones, so that remembered passes are met again. Each ends with a word that it
# holds before, so that prompt lookup drafts, too.
OPENINGS = (
    "Once upon a time there was a",
    "The best way to learn is to",
    "I like the sea and the",
    "for x in a: for y in",
)


@click.command()
@pair_options
@law_options
@verify_option
@click.option(
    "--prompts",
    type=click.Path(dir_okay=False, path_type=Path),
    help='JSON lines with "prompt" or "turns", taken as they are; a few short openings by default.',
)
@click.option("--limit", type=int, default=4, show_default=True, help="Most prompts to take.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    help="Most seconds for the test of the output's law.",
)
@result_options
def check(
    verify: str,
    prompts: Path | None,
    limit: int,
    budget: float,
    output: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Test that speculation writes what the target alone would, on your models and settings.

    Three tests: greedy outputs equal plain decoding at several draft lengths; the target accepts
    all of its own drafts; and where sampling is on, a sequential test of the output's law, for
    the rules block and coupled, or the one named by --verify. The first and the last meet trees,
    too, where the target can score them. Near-ties that the runtime rounds differently are
    reported apart, by a measured margin.

    Exit status 1 where a test fails, or the test of the law runs out of its budget undecided.
    """
    length = given["draft_length"]
    if prompts is None:
        texts = list(OPENINGS[:limit])
    else:
        texts = [prompt.text for prompt in read_prompts(prompts, limit)]
    subject = load_subject(output, given, LAW_LENGTH if length == "auto" else length)
    rules: tuple[Rule, ...] = ("block", "coupled") if verify == "auto" else (verify,)  # type: ignore[assignment]  # one of click's choices
    tests = make_check(subject, texts, rules, length, budget)
    findings = []
    for finding in tests.run():
        findings.append(finding)
        if not as_json:
            click.echo(f"{finding.status:<9}  {finding.test}: {finding.line}")
    passed = all(finding.fine for finding in findings)
    result = {
        **report(tests, findings, passed),
        "options": subject.options,
        "provenance": subject.provenance(),
    }
    finish("check", result, output, None if as_json else lambda _: click.echo(verdict(findings)))
    if not passed:
        sys.exit(FAILED)


def make_check(
    subject: Subject,
    texts: list[str],
    rules: tuple[Rule, ...],
    length: int | str,
    budget: float,
) -> Check:
    """The tests of a loaded pair.

    Raises:
        InvalidSetting: Nothing drafts, or there is no prompt.
    """
    speculator = subject.speculator
    if speculator.drafter is None or length == 0:
        raise InvalidSetting(
            "there is no draft to check",
            why="without drafts the output is plain decoding's by definition",
            remedy="name a --draft or a --drafter, and a --draft-length above 0",
        )
    if not texts:
        raise InvalidSetting(
            "there is no prompt to check with",
            why="every test compares continuations",
            remedy="set --limit to 1 or more",
        )
    return Check(
        speculator.target,
        speculator.drafter,
        [subject.request(text) for text in texts],
        rules,
        lengths=(length,) if isinstance(length, int) else LENGTHS,
        law_length=min(length, LAW_LENGTH) if isinstance(length, int) else LAW_LENGTH,
        budget=budget,
    )


def verdict(findings: list[Finding]) -> str:
    """The last line."""
    failed = sorted({finding.test for finding in findings if finding.status == "fail"})
    undecided = sorted({finding.test for finding in findings if finding.status == "undecided"})
    if failed:
        return f"verdict: NOT exact ({', '.join(failed)})"
    if undecided:
        return f"verdict: undecided ({', '.join(undecided)})"
    return "verdict: exact, as far as these tests can tell"


def report(tests: Check, findings: list[Finding], passed: bool) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "target": tests.target.name,
        "drafter": tests.drafter.name,
        "passed": passed,
        "verdict": verdict(findings),
        "findings": [
            {"test": f.test, "status": f.status, "line": f.line, **f.details} for f in findings
        ],
    }
