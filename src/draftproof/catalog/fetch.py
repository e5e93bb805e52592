"""Files over HTTP: resumable, and checked on arrival."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import httpx

from draftproof.catalog.disk import sha256_of
from draftproof.errors import FetchFailed

PATIENCE = 4  # connections in a row that bring nothing before giving up


def make_client() -> httpx.Client:
    """An HTTP client on the system's certificates, quick to notice an unreachable host."""
    return httpx.Client(
        verify=ssl.create_default_context(),
        timeout=httpx.Timeout(60.0, connect=5.0),
        follow_redirects=True,
        headers={
            "User-Agent": f"draftproof/{version('draftproof')}",
            "Accept-Encoding": "identity",
        },
    )


def download(
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
            cause = _one_connection(client, url, part, before, tell)
            if not cause and size is None:
                return
            cause = cause or "the connection closed early"
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
) -> str:
    """Append what one connection brings; says why where the server should be asked again."""
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    with client.stream("GET", url, headers=headers) as response:
        status = response.status_code
        if status in (408, 429) or status >= 500:
            return f"the server answered with status {status}"
        if status == 416:  # the file is shorter than what we hold: not the same file
            part.unlink()
            return "the server has fewer bytes than were fetched before"
        if status not in (200, 206):
            raise refused(url, status)
        goes_on = status == 206 and offset > 0
        done = offset if goes_on else 0
        with part.open("ab" if goes_on else "wb") as file:
            for chunk in response.iter_raw():  # as it comes: a buffer would be lost on a cut
                file.write(chunk)
                done += len(chunk)
                tell(done)
    return ""


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
