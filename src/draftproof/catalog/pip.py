"""Wheels as files, brought by pip, the package index's own client: nothing is installed.

pip knows the user's index, mirror, certificates and proxy, and checks what the index announces of
a file. Everything that is said here about its output is held by a test that runs the real one.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from draftproof.catalog.disk import DISK_FULL
from draftproof.errors import FetchFailed

# Called with (command, additions to the environment, what to do with each line it prints); gives
# the exit status.
Run: TypeAlias = Callable[[list[str], dict[str, str], Callable[[str], None]], int]

RAW_PROGRESS = (24, 1)  # the first pip that can report bytes in lines
RESUMING = (25, 1)  # the first that goes on with a broken download
PATIENCE = 5  # how often it does
LAST_WORDS = 10.0  # seconds a terminated client has to end

_VERSION = re.compile(r"pip (\d+)\.(\d+)\b")
_PROGRESS = re.compile(r"Progress (\d+) of \d+")
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_ERROR = re.compile(r"(?:ERROR|\w+Error): ?(?P<said>.+)")
_UNREACHED = "after connection broken by"


def run(command: list[str], environment: dict[str, str], on_line: Callable[[str], None]) -> int:
    """Run a command to its end; whatever ends the reading of its lines, Ctrl-C too, ends it.

    Args:
        command: Program and arguments. It gets nothing to read, so it cannot wait for answers.
        environment: Added to this process's own.
        on_line: Told each line of its output and its errors.

    Returns:
        The exit status.

    Raises:
        OSError: There is no such program, or it cannot be run.
    """
    import subprocess

    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                on_line(line.rstrip())
            return process.wait()
        except BaseException:
            process.terminate()
            try:
                process.wait(LAST_WORDS)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


@dataclass(frozen=True, slots=True)
class Pip:
    """A pip that runs: how it is called, and what it can do."""

    command: tuple[str, ...]
    version: tuple[int, int]
    run: Run

    def download(self, requirement: str, folder: Path, tell: Callable[[int], None]) -> Path:
        """Bring one wheel. One that an earlier call completed is not fetched again.

        Args:
            requirement: `name==version`.
            folder: Where it goes; of this wheel alone.
            tell: Called with the bytes that are there, where pip reports them.

        Returns:
            The wheel.

        Raises:
            FetchFailed: pip fails, for the reason that it gives.
            OSError: The disk is full.
        """
        said: list[str] = []

        def on_line(line: str) -> None:
            if match := _PROGRESS.fullmatch(line):
                tell(int(match[1]))
            else:
                said.append(line)

        # pip writes here first: on the disk that was found to have room, not on the system's own.
        temporary = folder / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)  # of a try that was killed
        temporary.mkdir(parents=True)
        command = [*self.command, "download", *self._options(), "--dest", str(folder), requirement]
        try:
            status = self.run(command, {"TMPDIR": str(temporary)}, on_line)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        wheel = next(folder.glob("*.whl"), None)
        if status or wheel is None:
            raise _failure(requirement, said)
        return wheel

    def _options(self) -> list[str]:
        """The options of `pip download` that this version has."""
        options = [
            "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--no-color",
            "--disable-pip-version-check",
            "--progress-bar", "raw" if self.version >= RAW_PROGRESS else "off",
        ]  # fmt: skip
        return options + ["--resume-retries", str(PATIENCE)] * (self.version >= RESUMING)


def find(run: Run) -> Pip:
    """This interpreter's pip; where it has none, as in uv's environments, the one on the path.

    Raises:
        FetchFailed: There is none.
    """
    ways = [[sys.executable, "-m", "pip"]]
    if (on_path := shutil.which("pip")) is not None:
        ways.append([on_path])
    for command in ways:
        said: list[str] = []
        with suppress(OSError):
            status = run([*command, "--version"], {}, said.append)
            match = _VERSION.search("\n".join(said))
            if status == 0 and match:
                return Pip(tuple(command), (int(match[1]), int(match[2])), run)
    raise FetchFailed(
        "there is no pip to fetch wheels with",
        why=f"{sys.executable} has no module pip, and no pip on the path runs",
        remedy="install it (`python -m ensurepip`), or give the path of a file",
    )


def _failure(requirement: str, said: list[str]) -> Exception:
    """The client's last words as an error of ours; a full disk as the operating system's."""
    for line in said:
        match = _ERRNO.search(line)
        if match and int(match[1]) in DISK_FULL:
            return OSError(int(match[1]), line)
    # Where no index answers, pip's last error is that it knows no such version: name the cause.
    unreached = [line for line in said if _UNREACHED in line]
    errors = [match["said"] for line in said if (match := _ERROR.match(line))]
    return FetchFailed(
        f"{requirement} could not be fetched with pip",
        why=(unreached or errors or said or ["it gave no reason"])[-1],
        remedy="check the network and pip's settings (`pip config list`), then run the command "
        "again: finished parts are kept; or give the path of a file",
    )
