"""Small files of what was measured, kept from one process to the next.

Nothing depends on them: where one is missing, damaged, of another format or about something else,
it is measured anew, and a folder that cannot be written holds no files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftproof.files import replacing

FORMAT = 1  # of the files; to be raised when the meaning of a number in them changes
MOST_FILES = 128  # the ones that were written longest ago go first
MOST_BYTES = 2**17


@dataclass(frozen=True, slots=True)
class PairKey:
    """What measurements belong to: a pair, and all that they depend on besides.

    Args:
        target: What tells the target's files from any others.
        draft: The same of the draft's; empty where drafts come from no file.
        drafter: What drafts; empty for what does not depend on it.
        machine: Processor, threads and whatever else they depend on; ready for `json.dumps`.
    """

    target: str
    draft: str
    drafter: str
    machine: Mapping[str, Any]


class KeptFile:
    """Where one measurement is kept.

    Args:
        folder: Of all of them; made when one is written.
        key: What the measurement is about.
    """

    def __init__(self, folder: Path, key: PairKey) -> None:
        self._key = _plain(asdict(key))
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.path = folder / f"{digest[:32]}.json"

    def read(self) -> dict[str, Any] | None:
        """What was written, among other things; None where nothing was that can be used."""
        document = _read(self.path)
        return document if document is not None and document.get("key") == self._key else None

    def write(self, content: Mapping[str, Any]) -> None:
        """Keep it, where the folder can be written; `content` is ready for `json.dumps`."""
        document = {"format": FORMAT, "key": self._key, **content}
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as file:
                file.write(json.dumps(document).encode())
            files = sorted(self.path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in files[:-MOST_FILES]:
                path.unlink()


def forget(folder: Path, model: str) -> int:
    """Remove everything that a model takes part in, as target or as draft.

    Args:
        folder: Of all files.
        model: As in `PairKey`.

    Returns:
        How many files there were.
    """
    removed = 0
    for path in folder.glob("*.json"):
        key = (_read(path) or {}).get("key")
        if isinstance(key, dict) and model in (key.get("target"), key.get("draft")):
            with suppress(OSError):
                path.unlink()
                removed += 1
    return removed


def _read(path: Path) -> dict[str, Any] | None:
    """A file of this format; None for any other."""
    with suppress(OSError, ValueError, RecursionError):
        if path.stat().st_size <= MOST_BYTES:
            document = json.loads(path.read_bytes())
            if isinstance(document, dict) and document.get("format") == FORMAT:
                return document
    return None


def _plain(value: Any) -> Any:
    """As it comes back from a file, so that keys can be compared."""
    return json.loads(json.dumps(value))
