"""`draftproof generate`: continue a prompt."""

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
from draftproof.cli.render import INTERRUPTED, Asked, answer


@click.command()
@pair_options
@law_options
@output_options
@explain_options
@json_option
@click.argument("prompt")
def generate(
    prompt: str, as_json: bool, explain: bool, explain_page: Path | None, **given: Any
) -> None:
    """Continue PROMPT, or the text on standard input where PROMPT is '-'.

    The text streams to standard output, drafted tokens that were kept tinted, and an account of
    the run follows on standard error.
    """
    explaining = Explain(explain, explain_page)
    loading, options = split(given)
    text = sys.stdin.read() if prompt == "-" else prompt
    speculator = load_with_progress(**loading)
    asked = Asked(text, speculator.stream(text, **options), speculator)
    if not answer(asked, explaining, as_json):
        sys.exit(INTERRUPTED)
