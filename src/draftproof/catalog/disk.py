"""What a fetch does to the disk: room, refusals, checksums; and whom it tells how far it is."""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from draftproof.errors import FetchFailed, OutOfDisk

# Called with (what is being done, bytes done, bytes in all); bytes in all is 0 where unknown.
Progress: TypeAlias = Callable[[str, int, int], None]

MARGIN = 64 * 2**20  # left free on the disk, so that nothing else on the machine stalls
CHUNK = 2**20
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def silent(what: str, done: int, total: int) -> None:
    """Progress that tells nobody."""


def require_room(folder: Path, need: int, what: str) -> None:
    """Refuse to start a download that the disk cannot hold.

    Raises:
        OutOfDisk: Fewer than `need` bytes and a margin are free.
    """
    free = shutil.disk_usage(folder).free
    if free < need + MARGIN:
        raise _no_room(
            folder, what, f"{need / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free"
        )


def _no_room(folder: Path, what: str, why: str) -> OutOfDisk:
    return OutOfDisk(
        f"no room on the disk for {what} in {folder}",
        why=why,
        remedy="free some space (`draftproof models remove NAME`), "
        "or set DRAFTPROOF_CACHE to a folder on another disk",
    )


@contextmanager
def writing(folder: Path, what: str, clean: Callable[[], None]) -> Iterator[None]:
    """Turn the operating system's refusals to write into this project's errors.

    Args:
        folder: Where is written.
        what: What is written, for the message.
        clean: Removes what is half-written; called when the disk is full.

    Raises:
        OutOfDisk: The disk or the quota is full.
        FetchFailed: The folder cannot be written for another reason.
    """
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            clean()
            raise _no_room(folder, what, "the disk became full while writing") from error
        raise FetchFailed(
            f"{what} cannot be written to {folder}",
            why=str(error),
            remedy="make the folder writable, or set DRAFTPROOF_CACHE to another one",
        ) from error


def sha256_of(path: Path, tell: Callable[[int], None] = lambda done: None) -> str:
    """Checksum of a file, telling the bytes read so far."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            tell(done)
    return digest.hexdigest()
