"""What a person sees: streamed text tinted by origin, and the one-line account."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import click
from rich.console import Console
from rich.text import Text

from draftproof.cli.explain import Explain
from draftproof.core import Token
from draftproof.engine import Generation, Speculator, Stream
from draftproof.errors import DraftproofError

INTERRUPTED = 130  # the shell's convention: 128 + SIGINT

TINTS = {"accepted": "green", "residual": "", "bonus": "", "plain": ""}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user asked, the answer as it comes, and what gives it."""

    text: str
    stream: Stream
    speculator: Speculator


def answer(asked: Asked, explain: Explain, as_json: bool) -> bool:
    """Print an output as it comes and its account, or one JSON object; False after Ctrl-C.

    What was generated before an error or Ctrl-C is printed all the same.
    """
    console = Console(highlight=False, soft_wrap=True)
    stream, tokenizer = asked.stream, asked.speculator.tokenizer
    drafter = asked.speculator.drafter.name if asked.speculator.drafter else None

    def conclude() -> None:
        result = stream.result
        said = account(result, drafter)
        if as_json:
            click.echo(json.dumps(result.to_json(rounds=explain.table), ensure_ascii=False))
        else:
            click.echo()
            explain.show(result, tokenizer)
            show_account(said, () if explain.table else result.stats.reasons)
        explain.write(asked.text, result, said, tokenizer)

    try:
        completed = consume(
            stream, (lambda token: None) if as_json else partial(show_token, console)
        )
    except DraftproofError:
        if stream.result.tokens:
            conclude()
        raise
    conclude()
    return completed


def consume(stream: Stream, show: Callable[[Token], None]) -> bool:
    """Play the stream to its end; False where Ctrl-C ended it, the output so far kept.

    Text that waited for the rest of a character or of a stop string is shown then, too.
    """
    shown = 0
    try:
        for token in stream:
            shown += 1
            show(token)
    except BaseException as error:
        stream.close()
        for token in stream.result.tokens[shown:]:
            show(token)
        if not isinstance(error, KeyboardInterrupt):
            raise
        return False
    return True


def show_token(console: Console, token: Token) -> None:
    """One token; on a terminal, a drafted token that was kept is tinted."""
    if console.is_terminal:
        console.print(Text(token.text, style=TINTS[token.origin]), end="")
    else:
        sys.stdout.write(token.text)
    sys.stdout.flush()


def account(generation: Generation, drafter: str | None) -> str:
    """One line: speed, tokens per round, acceptance, what drafted, why it ended."""
    stats = generation.stats
    parts = [
        f"{stats.emitted} tokens",
        f"{stats.tokens_per_second:.1f} tokens/s",
        f"{stats.tokens_per_round:.2f} tokens per round",
    ]
    if drafter is None:
        parts.append("plain decoding")
    elif stats.acceptance is None:
        parts.append(f"nothing drafted by {drafter}")
    else:
        parts.append(
            f"{stats.acceptance:.0%} of {stats.drafted} drafted tokens accepted ({drafter})"
        )
    parts.append(f"ended by {generation.finish_reason}")
    return " · ".join(parts)


def show_account(said: str, reasons: Sequence[str]) -> None:
    """The account and, where speculation was switched, the reasons, on stderr."""
    console = Console(stderr=True, highlight=False)
    for line in (said, *reasons):
        console.print(line, style="dim", soft_wrap=True)
