"""The page of `--explain-page`: the text with each token's account, and acceptance along it.

One file that needs no other: no script, no font, no request. Whatever a model wrote is escaped by
the template's own rule, and the page's policy forbids scripts besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from draftproof import __version__
from draftproof.cli.chart import Chart, chart
from draftproof.cli.rounds import Names, Told, chance, reasons_before
from draftproof.core import Token
from draftproof.engine import Generation

if TYPE_CHECKING:
    from jinja2 import Template

ORIGINS = {
    "accepted": "drafted, and kept",
    "residual": "the target's own, where a drafted token was rejected",
    "bonus": "the target's own, behind a draft that was kept whole",
    "plain": "the target's own, where nothing was drafted",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A token of the text: `title` is what the pointer over it shows, `first` begins a round."""

    text: str
    origin: str
    title: str
    first: bool


@dataclass(frozen=True, slots=True)
class Section:
    """An answer as the page shows it."""

    asked: str
    account: str
    figures: tuple[tuple[str, str], ...]
    reasons_before: tuple[str, ...]
    reasons: tuple[str, ...]
    tokens: tuple[Shown, ...]
    chart: Chart
    rounds: tuple[Told, ...]


def section(
    asked: str, generation: Generation, account: str, rounds: Sequence[Told], names: Names
) -> Section:
    """An answer's part of the page.

    Args:
        asked: The prompt.
        generation: The answer.
        account: The line that sums it up.
        rounds: Its rounds.
        names: What tokens are called.
    """
    return Section(
        asked=asked,
        account=account,
        figures=figures(generation),
        reasons_before=reasons_before(generation),
        reasons=generation.stats.reasons,
        tokens=tuple(shown(generation, names)),
        chart=chart(generation),
        rounds=tuple(rounds),
    )


def page(sections: Sequence[Section]) -> str:
    """The page of these answers; what HTML cannot hold is replaced."""
    html = template().render(sections=sections, origins=ORIGINS, version=__version__)
    html = html.replace("\0", "\N{SYMBOL FOR NULL}")
    return html.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate becomes "?"


def figures(generation: Generation) -> tuple[tuple[str, str], ...]:
    """What the account leaves out."""
    stats = generation.stats
    return (
        ("rule", generation.rule),
        ("seed", str(generation.seed)),
        ("prompt", f"{generation.prompt_tokens} tokens in {stats.prefill_seconds:.2f} s"),
        ("rounds", f"{stats.rounds} in {stats.decode_seconds:.2f} s"),
        ("drafting", f"{stats.draft_seconds:.2f} s"),
        ("scoring", f"{stats.score_seconds:.2f} s"),
        ("verifying", f"{stats.verify_seconds:.2f} s"),
    )


def shown(generation: Generation, names: Names) -> list[Shown]:
    """The tokens of the text with their accounts."""
    before = -1
    told = []
    for token in generation.tokens:
        told.append(
            Shown(token.text, token.origin, title(token, generation, names), token.round != before)
        )
        before = token.round
    return told


def title(token: Token, generation: Generation, names: Names) -> str:
    """A token's account in a line; rounds and tokens count from 1."""
    parts = [names(token.id), token.origin]
    if token.source:
        parts.append(f"drafted by {token.source}")
    refused = rejected(token, generation)
    if refused:
        parts.append("in place of " + ", ".join(names(other) for other in refused))
    parts += [
        f"p {chance(token.p)}",
        f"q {chance(token.q)}",
        f"round {token.round + 1}",
        f"token {token.position + 1}",
        f"id {token.id}",
    ]
    return " · ".join(parts)


def rejected(token: Token, generation: Generation) -> list[int]:
    """The drafted tokens in whose place the target's own stands."""
    if token.origin != "residual" or token.round >= len(generation.rounds):
        return []
    guesses = generation.rounds[token.round].guesses
    last = max((node for node, guess in enumerate(guesses) if guess.kept), default=-1)
    return [guess.id for guess in guesses if guess.parent == last and not guess.kept]


@cache
def template() -> Template:
    """The page's template, which escapes all that it is given."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["chance"] = chance
    source = resources.files("draftproof").joinpath("data", "explain.html")
    return environment.from_string(source.read_text(encoding="utf-8"))
