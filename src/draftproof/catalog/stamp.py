"""Verified before use, without hashing a gigabyte at every start.

Beside a verified file lies a stamp: its size, its modification time and its checksum. While size
and time are as stamped the file is taken as verified; otherwise it is hashed again.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from draftproof.catalog.disk import sha256_of
from draftproof.errors import ModelCorrupt

_STAMP = ".stamp.json"


def stamp_path(path: Path) -> Path:
    """Where the stamp of `path` lies."""
    return path.with_name(path.name + _STAMP)


def write(path: Path, sha256: str) -> None:
    """Stamp a file that was found to have this checksum."""
    status = path.stat()
    stamp = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}
    with suppress(OSError):  # a cache that cannot be written is hashed each time
        stamp_path(path).write_text(json.dumps(stamp))


def identity(path: Path) -> str:
    """What tells a model's files from any others, found without reading them.

    Of a file with a valid stamp its checksum counts, of another its path, size and modification
    time; of a folder all files in it.

    Args:
        path: A file or a folder that is there.
    """
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if _part(file))
    parts = []
    for file in files:
        status, stamp = file.stat(), _read(file)
        told = {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
        if isinstance(stamp, dict) and stamp == {**told, "sha256": stamp.get("sha256")}:
            parts.append(f"{file.name} {stamp['sha256']}")
        else:
            parts.append(f"{file.resolve()} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _part(file: Path) -> bool:
    """Whether a file in a model's folder belongs to the model: neither hidden nor a stamp."""
    return file.is_file() and not file.name.startswith(".") and not file.name.endswith(_STAMP)


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
