"""`draftproof generate`: continue a prompt."""

from __future__ import annotations

import sys
from typing import Any

import click

from draftproof.cli.options import json_option, law_options, output_options, pair_options, split
from draftproof.cli.progress import load_with_progress
from draftproof.cli.render import INTERRUPTED, answer


@click.command()
@pair_options
@law_options
@output_options
@json_option
@click.argument("prompt")
def generate(prompt: str, as_json: bool, **given: Any) -> None:
    """Continue PROMPT, or the text on standard input where PROMPT is '-'.

    The text streams to standard output, drafted tokens that were kept tinted, and an account of
    the run follows on standard error.
    """
    loading, options = split(given)
    text = sys.stdin.read() if prompt == "-" else prompt
    speculator = load_with_progress(**loading)
    name = speculator.drafter.name if speculator.drafter else None
    stream = speculator.stream(text, **options)
    if not answer(stream, name, as_json):
        sys.exit(INTERRUPTED)
