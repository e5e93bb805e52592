"""`draftproof chat`: a conversation in the model's chat template."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from draftproof.cli.explain import Explain
from draftproof.cli.options import (
    explain_options,
    json_option,
    law_options,
    output_options,
    pair_options,
    split,
)
from draftproof.cli.progress import load_with_progress
from draftproof.cli.render import Asked, answer
from draftproof.ports import Remembering


@click.command()
@pair_options
@law_options
@output_options
@click.option("--system", help="A system message to begin with.")
@explain_options
@json_option
def chat(
    system: str | None, as_json: bool, explain: bool, explain_page: Path | None, **given: Any
) -> None:
    """Talk with a model, a line a turn; end with Ctrl-D.

    Ctrl-C ends an answer early and keeps it. Lines may come from a pipe; with --json each answer
    is one JSON object on a line of its own. The page of --explain-page holds all answers so far.
    The CPU engine reads only what is new of a conversation.
    """
    explaining = Explain(explain, explain_page)
    loading, options = split(given)
    speculator = load_with_progress(**loading)
    if isinstance(speculator.target, Remembering):
        speculator.remember()
    history = [{"role": "system", "content": system}] if system else []
    while (line := read_line()) is not None:
        if not line.strip():
            continue
        history.append({"role": "user", "content": line})
        stream = speculator.chat(history, **options)
        answer(Asked(line, stream, speculator), explaining, as_json)
        history.append({"role": "assistant", "content": stream.result.text})


def read_line() -> str | None:
    """The next user's turn; None at the end of the input."""
    if sys.stdin.isatty():
        click.echo("> ", nl=False, err=True)
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None
