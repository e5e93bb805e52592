"""What `--explain` tells: an output's rounds one by one, as a table on standard error."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof.bench.provenance import check_output, write_whole
from draftproof.cli.page import Section, page, section
from draftproof.cli.rounds import Names, Told, chance, reasons_before, told
from draftproof.engine import Generation
from draftproof.ports import Tokenizer

PAGE = "--explain-page"
PIPED = 100  # columns where standard error is no terminal
LONGEST = 24  # columns of a token
STYLES = {"accepted": "green", "rejected": "red", "not reached": "dim"}


class Explain:
    """What `--explain` and `--explain-page` ask for, over the answers of one run.

    Args:
        table: Whether each answer's rounds are told.
        output: Where the page goes; None for no page.

    Raises:
        InvalidInput: The page cannot be written there.
    """

    def __init__(self, table: bool, output: Path | None) -> None:
        check_output(output, PAGE)
        self.table = table
        self._output = output
        self._sections: list[Section] = []

    def show(self, generation: Generation, tokenizer: Tokenizer | None) -> None:
        """Print the table, where it was asked for."""
        if self.table:
            show_rounds(Console(stderr=True, highlight=False), generation, Names(tokenizer))

    def write(
        self, asked: str, generation: Generation, account: str, tokenizer: Tokenizer | None
    ) -> None:
        """Write the page of all answers so far, where it was asked for.

        Raises:
            InvalidInput: It cannot be written.
        """
        if self._output is None:
            return
        names = Names(tokenizer)
        rounds = told(generation, names)
        self._sections.append(section(asked, generation, account, rounds, names))
        write_whole(self._output, page(self._sections), PAGE)
        click.echo(f"explained in {self._output}", err=True)


def show_rounds(console: Console, generation: Generation, names: Names) -> None:
    """Print the rounds; behind those that switched speculation, why.

    The rounds between two such reasons are a table of their own, all with the same columns.
    """
    rounds = told(generation, names)
    if not console.is_terminal:
        console.width = PIPED
    say = partial(console.print, style="dim", soft_wrap=True, markup=False)
    for reason in reasons_before(generation):
        say(reason)
    table = columns(rounds, header=True)
    for round in rounds:
        table.add_row(*cells(round))
        if round.account.reasons:
            console.print(table)
            table = columns(rounds, header=False)
            for reason in round.account.reasons:
                say(reason)
    if table.row_count:
        console.print(table)


def columns(rounds: Sequence[Told], header: bool) -> Table:
    """An empty table, as wide as these rounds need."""
    every = [line for round in rounds for line in round.lines]
    token = min(max((cell_len(line.stem + line.token) for line in every), default=0), LONGEST)
    drafter = min(max((cell_len(line.source) for line in every), default=0), LONGEST)
    table = Table(box=None, show_header=header, header_style="dim", padding=(0, 1, 0, 0))
    table.add_column("round", justify="right", width=5)
    table.add_column("accepted", justify="right", width=8)
    table.add_column("drafter", no_wrap=True, width=max(drafter, len("drafter")))
    table.add_column("token", no_wrap=True, width=max(token, len("token")))
    table.add_column("p", justify="right", no_wrap=True, width=5)
    table.add_column("q", justify="right", no_wrap=True, width=5)
    table.add_column("outcome", no_wrap=True, width=11)
    table.add_column("ms", justify="right", no_wrap=True, width=7)
    table.add_column("why it stopped", min_width=14)
    return table


def cells(round: Told) -> tuple[Text, ...]:
    """A row: one cell for the round in the outer columns, a line for each token in the others."""
    every = round.lines
    sources = [line.source for line in every]
    repeated = [i > 0 and sources[i - 1] == source for i, source in enumerate(sources)]
    return (
        Text(str(round.number)),
        Text(round.accepted),
        Text(
            "\n".join("" if same else short(s) for s, same in zip(sources, repeated, strict=True))
        ),
        Text("\n".join(line.stem + line.token for line in every)),
        Text("\n".join(chance(line.p) for line in every)),
        Text("\n".join(chance(line.q) for line in every)),
        Text("\n").join(Text(line.outcome, style=STYLES.get(line.outcome, "")) for line in every),
        Text(round.milliseconds),
        Text(round.stopped),
    )


def short(source: str) -> str:
    """A source as wide as its column: of a long model's name the beginning, its way in full."""
    name, comma, way = source.rpartition(", ")
    if not comma or cell_len(source) <= LONGEST or len(way) > LONGEST // 2:
        return source
    return f"{name[: max(LONGEST - len(way) - 3, 1)]}…{comma}{way}"
