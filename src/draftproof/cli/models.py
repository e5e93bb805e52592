"""`draftproof models`: what there is, fetching it, removing it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import TracebackType

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from draftproof.catalog import Catalog, Status, identity, profiles_dir
from draftproof.cli.render import INTERRUPTED
from draftproof.planner import forget


class DownloadBar:
    """A progress bar on standard error; an instance is a `catalog.Progress`.

    It appears with the first step whose bytes are known; steps before that are named once. It ends
    with each file's verification: what follows, such as timing a model, is not disturbed.
    """

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("", total=None, visible=False)
        self._what = ""
        self._total = 0

    def __enter__(self) -> DownloadBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` bytes of `what` are there."""
        if total == 0:
            if what != self._what:
                click.echo(what, err=True)
            self._what = what
            return
        self._bar.start()
        verifying = what.startswith("verifying")
        if total != self._total or verifying != self._what.startswith("verifying"):
            self._bar.reset(self._task, total=total)  # another step: its own speed
        self._what, self._total = what, total
        self._bar.update(self._task, description=what, completed=done, visible=True)
        if verifying and done == total:
            self._stop()

    def _stop(self) -> None:
        if self._bar.live.is_started:  # where nothing was shown, nothing is to be ended
            self._bar.stop()


@contextmanager
def fetching(catalog: Catalog, *names: str) -> Iterator[DownloadBar]:
    """A progress bar around what may fetch; Ctrl-C passes on, after saying what was kept."""
    try:
        with DownloadBar() as bar:
            yield bar
    except KeyboardInterrupt:
        for name in names:
            if kept := catalog.kept(name):
                click.echo(
                    f"\ninterrupted: {_megabytes(kept)} of {name} are kept; "
                    f"`draftproof models fetch {name}` goes on from there",
                    err=True,
                )
        raise


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the list as one JSON array.")
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """List the named models, fetch them, remove them."""
    if context.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError("--json belongs to the list: `draftproof models --json`")
        return
    from draftproof.backends.info import engines

    catalog = Catalog()
    listed = catalog.list()
    if as_json:
        click.echo(json.dumps([_as_object(status) for status in listed], indent=2))
        return
    for status in listed:
        click.echo(_line(status))
    click.echo(
        f"cache: {catalog.root}\n"
        "Any org/name or org/name:file.gguf of the Hugging Face hub, and any path, works too."
    )
    for line in engines():
        click.echo(line)


@models.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def fetch(names: tuple[str, ...]) -> None:
    """Fetch models into the cache and verify them; a damaged one is replaced.

    Interrupted, it goes on where it stopped when run again.
    """
    catalog = Catalog()
    for name in names:
        try:
            with fetching(catalog, name) as bar:
                path = catalog.fetch(name, bar)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        click.echo(f"{name}: {path}")


@models.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def remove(names: tuple[str, ...]) -> None:
    """Remove models, what is half-fetched of them and what was measured of them from the cache."""
    catalog, profiles = Catalog(), profiles_dir()
    for name in names:
        path = catalog.where(name)
        model = identity(path) if path.exists() else None
        click.echo(f"{name}: {_megabytes(catalog.remove(name))} freed")
        if model is not None and profiles is not None:
            forget(profiles, model)


def _as_object(status: Status) -> dict[str, object]:
    return {**asdict(status), "path": str(status.path) if status.path else None}


def _line(status: Status) -> str:
    """One model in two or three lines."""
    state = status.state
    if state == "partial":
        state_text = f"partial, {_megabytes(status.bytes)} so far"
    elif state == "damaged":
        state_text = f"damaged, fetch it again: {status.path}"
    else:
        state_text = f"cached: {status.path}" if status.path else "not cached"
    lines = [
        f"{status.name:<22}{_megabytes(status.size):>8}  {status.licence:<12} {state_text}",
        f"    {status.title}; {status.source}",
    ]
    return "\n".join([*lines, f"    {status.note}"] if status.note else lines)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"
