"""Files over HTTP: resumable, checked, and stopping before the disk is full."""

from __future__ import annotations

import errno
import hashlib
import shutil
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import httpx

from draftproof import __version__
from draftproof.errors import FetchFailed, OutOfDisk

# Called with (what is being done, bytes done, bytes in all); bytes in all is 0 where unknown.
Progress: TypeAlias = Callable[[str, int, int], None]

MARGIN = 64 * 2**20  # left free on the disk, so that nothing else on the machine stalls
CHUNK = 2**20
PATIENCE = 4  # connections in a row that bring nothing before giving up
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def silent(what: str, done: int, total: int) -> None:
    """Progress that tells nobody."""


def make_client() -> httpx.Client:
    """An HTTP client on the system's certificates, quick to notice an unreachable host."""
    return httpx.Client(
        verify=ssl.create_default_context(),
        timeout=httpx.Timeout(60.0, connect=5.0),
        follow_redirects=True,
        headers={"User-Agent": f"draftproof/{__version__}", "Accept-Encoding": "identity"},
    )


def require_room(folder: Path, need: int, what: str) -> None:
    """Refuse to start a download that the disk cannot hold.

    Raises:
        OutOfDisk: Fewer than `need` bytes and a margin are free.
    """
    free = shutil.disk_usage(folder).free
    if free < need + MARGIN:
        raise _no_room(folder, what, f"{need / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free")


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
        if error.errno in _DISK_FULL:
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


def download(  # noqa: PLR0913 - a file is what, where from, where to, and how it is known
    client: httpx.Client,
    url: str,
    part: Path,
    *,
    size: int | None,
    sha256: str | None,
    tell: Callable[[int], None],
) -> None:
    """Bring a file to `part`, going on from the bytes that are there.

    Args:
        client: Sends the requests.
        url: Where the file is.
        part: Where it goes; kept when interrupted.
        size: Its bytes, if known.
        sha256: Its checksum, if known; `part` is removed where it differs.
        tell: Called with the bytes of the file that are there.

    Raises:
        FetchFailed: The server refuses, the connection keeps breaking, or the checksum differs.
    """
    resumed = part.exists()
    _until_whole(client, url, part, size, tell)
    if sha256 is None or sha256_of(part) == sha256:
        return
    part.unlink()
    if resumed:  # the old bytes may be of another file: once more from the start
        download(client, url, part, size=size, sha256=sha256, tell=tell)
        return
    raise FetchFailed(
        f"{part.name.removesuffix('.part')} arrived with the wrong checksum",
        why=f"its source announces SHA-256 {sha256}; the bytes were removed",
        remedy="try again; if it happens again, something on the way alters the file",
    )


def _until_whole(
    client: httpx.Client, url: str, part: Path, size: int | None, tell: Callable[[int], None]
) -> None:
    """Connect until the whole file is there, waiting longer after each fruitless try."""
    fruitless, cause = 0, ""
    while fruitless < PATIENCE:
        before = part.stat().st_size if part.exists() else 0
        if size is not None and before > size:
            part.unlink()
            before = 0
        if before == size:
            tell(before)
            return
        if fruitless:
            time.sleep(0.5 * 2 ** (fruitless - 1))
        try:
            if _one_connection(client, url, part, before, tell) and size is None:
                return
            cause = "the connection closed early"
        except httpx.TransportError as error:
            cause = str(error) or type(error).__name__
        now = part.stat().st_size if part.exists() else 0
        fruitless = 0 if now > before else fruitless + 1
    raise FetchFailed(
        f"{_shown(url)} could not be fetched",
        why=f"{PATIENCE} connections in a row brought nothing ({cause})",
        remedy="check the network and run the command again: it goes on where it stopped",
    )


def _one_connection(
    client: httpx.Client, url: str, part: Path, offset: int, tell: Callable[[int], None]
) -> bool:
    """Append what one connection brings; False where the server should be asked again."""
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    with client.stream("GET", url, headers=headers) as response:
        status = response.status_code
        if status in (408, 429) or status >= 500:
            return False
        if status == 416:  # the file is shorter than what we hold: not the same file
            part.unlink()
            return False
        if status not in (200, 206):
            raise refused(url, status)
        goes_on = status == 206 and offset > 0
        done = offset if goes_on else 0
        with part.open("ab" if goes_on else "wb") as file:
            for chunk in response.iter_raw(CHUNK):
                file.write(chunk)
                done += len(chunk)
                tell(done)
    return True


def refused(url: str, status: int) -> FetchFailed:
    """The error for a server that answers, but not with the file."""
    return FetchFailed(
        f"{_shown(url)} was refused",
        why=f"the server answered with status {status}",
        remedy="check the address (PIP_INDEX_URL for the package index), or try again later",
    )


def _shown(url: str) -> str:
    """A URL for messages, without the credentials that it may carry."""
    parsed = httpx.URL(url)
    return str(parsed.copy_with(username=None, password=None, query=None))
