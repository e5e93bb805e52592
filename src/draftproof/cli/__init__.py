"""The command line. Each command is a file; this one holds them together and maps errors."""

from __future__ import annotations

import sys
import tempfile
import traceback
from typing import Any

import click

from draftproof import __version__
from draftproof.cli.bench import bench
from draftproof.cli.chat import chat
from draftproof.cli.check import check
from draftproof.cli.generate import generate
from draftproof.cli.models import models
from draftproof.cli.plan import plan
from draftproof.cli.render import INTERRUPTED
from draftproof.errors import DraftproofError

REFUSED = 2
BROKEN = 70  # EX_SOFTWARE: a fault of ours


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="draftproof")
def cli() -> None:
    """Speculative decoding: the same text from the same model, sooner."""


for command in (generate, chat, plan, check, bench, models):
    cli.add_command(command)


def main(argv: list[str] | None = None) -> Any:
    """Run a command; every error becomes a message and an exit status."""
    try:
        return cli.main(argv, prog_name="draftproof", standalone_mode=False)
    except DraftproofError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(REFUSED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader left: nothing more can be said
        sys.exit(0)
    except Exception as error:
        with tempfile.NamedTemporaryFile(
            "w", prefix="draftproof-", suffix=".log", delete=False
        ) as log:
            traceback.print_exc(file=log)
        click.echo(
            f"error: {type(error).__name__}: {error}\n"
            "  why: this is a fault in draftproof\n"
            f"  remedy: please report it with {log.name}",
            err=True,
        )
        sys.exit(BROKEN)
