"""Verified before use, without hashing a gigabyte at every start.

Beside a verified file lies a stamp: its size, its modification time and its checksum. While size
and time are as stamped the file is taken as verified; otherwise it is hashed again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from draftproof.catalog.disk import sha256_of
from draftproof.errors import ModelCorrupt


def stamp_path(path: Path) -> Path:
    """Where the stamp of `path` lies."""
    return path.with_name(f"{path.name}.stamp.json")


def write(path: Path, sha256: str) -> None:
    """Stamp a file that was found to have this checksum."""
    status = path.stat()
    stamp = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}
    with suppress(OSError):  # a cache that cannot be written is hashed each time
        stamp_path(path).write_text(json.dumps(stamp))


def _read(path: Path) -> object:
    with suppress(OSError, ValueError):
        return json.loads(stamp_path(path).read_text())
    return None


def require(path: Path, *, size: int, sha256: str, name: str) -> None:
    """Check a cached file.

    Raises:
        ModelCorrupt: It is missing, has another size, or another checksum.
    """
    remedy = f"`draftproof models fetch {name}` brings it again; `draftproof models remove {name}`"
    if not path.is_file():
        raise ModelCorrupt(
            f"the cached model {name} lacks a file", why=f"{path} is missing", remedy=remedy
        )
    status = path.stat()
    if status.st_size != size:
        kind = "truncated" if status.st_size < size else "too long"
        raise ModelCorrupt(
            f"the cached model {name} is {kind}",
            why=f"{path} has {status.st_size} bytes instead of {size}",
            remedy=remedy,
        )
    expected = {"size": size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}
    if _read(path) == expected:
        return
    found = sha256_of(path)
    if found != sha256:
        raise ModelCorrupt(
            f"the cached model {name} has the wrong checksum",
            why=f"{path} has SHA-256 {found} instead of {sha256}",
            remedy=remedy,
        )
    write(path, sha256)
