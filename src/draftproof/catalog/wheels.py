"""Models that travel in wheels: parts found on a package index, read as archives, joined."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from json import JSONDecodeError
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from draftproof.catalog.disk import CHUNK, Progress, require_room
from draftproof.catalog.entries import Entry, Wheel
from draftproof.catalog.fetch import PATIENCE, download, refused
from draftproof.errors import FetchFailed

INDEX_VARIABLE = "PIP_INDEX_URL"
DEFAULT_INDEX = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True, slots=True)
class Remote:
    """A wheel as the index announces it."""

    wheel: Wheel
    filename: str
    url: str
    size: int
    sha256: str | None


def index_url() -> str:
    """The package index: pip's own variable if set, else the public one."""
    return os.environ.get(INDEX_VARIABLE) or DEFAULT_INDEX


def find(client: httpx.Client, wheel: Wheel) -> Remote:
    """Ask the index for one wheel.

    Raises:
        FetchFailed: The index cannot be reached, does not speak JSON, or lacks the wheel.
    """
    url = f"{index_url().rstrip('/')}/{canonicalize_name(wheel.project)}/"
    page = _page(client, url)
    for file in page.get("files", ()):
        try:
            _, version, *_ = parse_wheel_filename(file["filename"])
        except InvalidWheelFilename:
            continue  # a source archive
        if version == Version(wheel.version):
            return Remote(
                wheel=wheel,
                filename=Path(file["filename"]).name,
                url=urljoin(url, file["url"]),
                size=file.get("size") or 0,
                sha256=file.get("hashes", {}).get("sha256"),
            )
    raise FetchFailed(
        f"the package index has no wheel of {wheel.project} {wheel.version}",
        why="a part of the model comes from it",
        remedy=f"choose an index that has it ({INDEX_VARIABLE}), or give the path of a file",
    )


def _page(client: httpx.Client, url: str) -> dict[str, Any]:
    """The index's JSON about one project (PEP 691), asked for again where the line drops."""
    for attempt in range(1, PATIENCE + 1):
        try:
            response = client.get(url, headers={"Accept": _JSON})
            break
        except httpx.TransportError as error:
            # No connection at all is not a dropped one: say so at once.
            if attempt == PATIENCE or isinstance(error, httpx.ConnectError):
                raise FetchFailed(
                    "the package index cannot be reached",
                    why=str(error) or type(error).__name__,
                    remedy=f"check the network, or choose another index ({INDEX_VARIABLE})",
                ) from error
    if response.status_code != 200:
        raise refused(url, response.status_code)
    try:
        page: dict[str, Any] = response.json()
    except (JSONDecodeError, UnicodeDecodeError) as error:
        raise FetchFailed(
            "the package index answered in a form that is not JSON",
            why="its answers are read as JSON (PEP 691)",
            remedy=f"choose an index that offers it ({INDEX_VARIABLE})",
        ) from error
    return page


class Assembly:
    """A model being joined from its parts, in files beside the final one.

    `<file>.partial` holds the members of the first `parts` wheels; `<file>.partial.json` says how
    many, so that an interrupted fetch goes on there. One wheel at a time is on the disk.
    """

    def __init__(self, entry: Entry, folder: Path) -> None:
        self.entry = entry
        self.folder = folder
        self.path = folder / f"{entry.file}.partial"
        self._journal = folder / f"{entry.file}.partial.json"
        self.parts, self.size = self._read()

    def _read(self) -> tuple[int, int]:
        """Parts joined so far and their bytes; (0, 0) where the files do not bear it out."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads(self._journal.read_text())
            parts, size = int(state["parts"]), int(state["size"])
            if state["sha256"] == self.entry.sha256 and self.path.stat().st_size >= size:
                return parts, size
        return 0, 0

    def append(self, archive: Path) -> None:
        """Join the next part's member and forget its wheel.

        Raises:
            FetchFailed: The wheel is not an archive, or lacks the member.
        """
        member = self.entry.wheels[self.parts].member
        try:
            mode = "r+b" if self.path.exists() else "wb"
            with (
                zipfile.ZipFile(archive) as wheel,
                wheel.open(member) as source,
                self.path.open(mode) as target,
            ):
                target.seek(self.size)
                target.truncate()  # a part that an interruption left half-joined
                shutil.copyfileobj(source, target, CHUNK)
                end = target.tell()
        except (zipfile.BadZipFile, zlib.error, KeyError) as error:
            archive.unlink()
            raise FetchFailed(
                f"{archive.name.removesuffix('.part')} is not the expected archive",
                why=f"its member {member} could not be read",
                remedy="try again, or choose another index (PIP_INDEX_URL)",
            ) from error
        self.parts, self.size = self.parts + 1, end
        state = {"sha256": self.entry.sha256, "parts": self.parts, "size": self.size}
        self._journal.write_text(json.dumps(state))
        archive.unlink()


def assemble(client: httpx.Client, entry: Entry, folder: Path, progress: Progress) -> Path:
    """Fetch the wheels of `entry` and join their members.

    Args:
        client: Sends the requests.
        entry: What to fetch.
        folder: Where the parts and the joined file go.
        progress: Told the bytes of wheels fetched.

    Returns:
        The joined file, not yet verified.

    Raises:
        FetchFailed: The index, a wheel or the network fails; what arrived is kept.
        OutOfDisk: Before the first byte, where the disk cannot hold model and largest part.
    """
    assembly = Assembly(entry, folder)
    remotes = _find_all(client, entry.wheels, lambda k: progress("asking the index", k, 0))
    largest = max((remote.size for remote in remotes[assembly.parts :]), default=0)
    require_room(folder, entry.size - assembly.size + largest, entry.name)
    total = sum(remote.size for remote in remotes)
    for k in range(assembly.parts, len(remotes)):
        remote = remotes[k]
        before = sum(earlier.size for earlier in remotes[:k])
        what = f"{entry.name}, part {k + 1} of {len(remotes)}"
        archive = folder / f"{remote.filename}.part"
        download(
            client,
            remote.url,
            archive,
            size=remote.size or None,
            sha256=remote.sha256,
            tell=partial(_tell, progress, what, before, total),
        )
        assembly.append(archive)
    return assembly.path


def _tell(progress: Progress, what: str, before: int, total: int, done: int) -> None:
    """Report a wheel's bytes as bytes of all wheels."""
    progress(what, before + done, total)


def _find_all(
    client: httpx.Client, wheels: Sequence[Wheel], tell: Callable[[int], None]
) -> list[Remote]:
    """Every wheel's announcement, before the first is fetched: a missing one shows at once."""
    found = []
    for k, wheel in enumerate(wheels):
        tell(k)
        found.append(find(client, wheel))
    return found
