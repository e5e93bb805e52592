"""Models of the hub that are not in the catalogue: `org/name` and `org/name:file.gguf`.

A repository's files lie in `<cache>/hub/<org>/<name>/`, with a manifest of what was fetched and
its checksums: the hub's own for large files, the one found on arrival for small ones.
"""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from draftproof.catalog import stamp
from draftproof.catalog.disk import Progress, require_room, sha256_of, writing
from draftproof.catalog.hub import Hub, HubFile, choose
from draftproof.errors import ModelCorrupt, ModelNotFound

_MANIFEST = ".manifest.json"
_NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?::(?P<file>[^:]+))?")


def parse(name: str) -> tuple[str, str | None] | None:
    """Repository and file of `org/name[:file]`; None where `name` is not of that form."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    repo, file = match["repo"], match["file"]
    if file is None and repo.endswith(".gguf"):
        return None  # folder/file.gguf: a path
    if file is not None and (file.startswith("/") or ".." in Path(file).parts or "\\" in file):
        return None
    return repo, file


class Repos:
    """The cached repositories under one folder."""

    def __init__(self, root: Path, hub: Hub) -> None:
        self.root = root
        self._hub = hub

    def folder(self, repo: str) -> Path:
        """Where a repository's files lie."""
        return self.root / repo

    def cached(self, repo: str, file: str | None) -> bool:
        """Whether a complete fetch was recorded."""
        manifest = self._manifest(repo)
        return file in manifest["files"] if file else bool(manifest["whole"])

    def require(self, repo: str, file: str | None) -> Path:
        """Verify what is cached.

        Returns:
            The file, or the folder of the whole repository.

        Raises:
            ModelCorrupt: A file is missing, truncated or has the wrong checksum.
        """
        manifest = self._manifest(repo)
        name = f"{repo}:{file}" if file else repo
        for wanted in [file] if file else manifest["whole"]:
            known = manifest["files"][wanted]
            path = self.folder(repo) / wanted
            stamp.require(path, size=known["size"], sha256=known["sha256"], name=name)
        return self.folder(repo) / file if file else self.folder(repo)

    def fetch(self, repo: str, file: str | None, progress: Progress) -> Path:
        """Bring a file or a whole model from the hub and verify it.

        Raises:
            ModelNotFound: The hub has no such repository, file or weights.
            FetchFailed: The hub cannot be reached.
            OutOfDisk: There is no room for it.
            ModelCorrupt: What arrived has another checksum than the hub announces.
        """
        progress(f"asking the hub for {repo}", 0, 0)
        chosen = choose(repo, self._hub.files(repo), file)
        folder = self.folder(repo)
        with writing(folder, repo, lambda: self._clear_partials(repo)):
            folder.mkdir(parents=True, exist_ok=True)
            require_room(folder, sum(self._lacking(folder, info) for info in chosen), repo)
            self._hub.download(repo, [info.name for info in chosen], folder)
            known = {info.name: self._verified(repo, info, progress) for info in chosen}
            manifest = self._manifest(repo)
            manifest["files"].update(known)
            if file is None:
                manifest["whole"] = sorted(known)
            (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1))
        return folder / file if file else folder

    @staticmethod
    def _lacking(folder: Path, info: HubFile) -> int:
        """Bytes of a file that are still to come."""
        return 0 if (folder / info.name).is_file() else info.size

    def _verified(self, repo: str, info: HubFile, progress: Progress) -> dict[str, Any]:
        """Hash a file that arrived; the manifest's line about it."""
        path = self.folder(repo) / info.name
        what = f"verifying {info.name}"
        found = sha256_of(path, lambda done: progress(what, done, info.size))
        if info.sha256 not in (None, found):
            path.unlink()
            raise ModelCorrupt(
                f"{info.name} of {repo} arrived with the wrong checksum",
                why=f"it has SHA-256 {found} instead of {info.sha256}; it was removed",
                remedy="fetch it again; if it happens again, something on the way alters the file",
            )
        stamp.write(path, found)
        return {"size": path.stat().st_size, "sha256": found}

    def _manifest(self, repo: str) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            manifest: dict[str, Any] = json.loads((self.folder(repo) / _MANIFEST).read_text())
            return manifest
        return {"whole": [], "files": {}}

    def _clear_partials(self, repo: str) -> None:
        shutil.rmtree(self.folder(repo) / ".cache", ignore_errors=True)

    def forget(self, repo: str, file: str | None) -> None:
        """Drop the record of a fetch, so that the next one asks the hub."""
        manifest = self._manifest(repo)
        for name in [file] if file else manifest["whole"]:
            manifest["files"].pop(name, None)
            path = self.folder(repo) / name
            path.unlink(missing_ok=True)
            stamp.stamp_path(path).unlink(missing_ok=True)
        manifest["whole"] = []
        (self.folder(repo) / _MANIFEST).write_text(json.dumps(manifest, indent=1))

    def remove(self, repo: str, file: str | None) -> int:
        """Remove a file, or all that is cached of a repository; returns the bytes freed.

        Raises:
            ModelNotFound: It is not cached.
        """
        folder = self.folder(repo)
        target = folder / file if file else folder
        if not target.exists():
            raise ModelNotFound(
                f"{repo}{f':{file}' if file else ''} is not in the cache",
                why=f"{target} does not exist",
                remedy="`draftproof models` lists what is there",
            )
        freed = size_of(target)
        if file is None or len(self._manifest(repo)["files"]) <= 1:
            shutil.rmtree(folder)
            with suppress(OSError):
                folder.parent.rmdir()  # the organisation's folder, where nothing else is in it
        else:
            self.forget(repo, file)
        return freed

    def names(self) -> list[str]:
        """The repositories and single files that are cached."""
        found = []
        for path in sorted(self.root.glob(f"*/*/{_MANIFEST}")):
            repo = f"{path.parent.parent.name}/{path.parent.name}"
            manifest = self._manifest(repo)
            single = sorted(set(manifest["files"]) - set(manifest["whole"]))
            found += [repo] * bool(manifest["whole"]) + [f"{repo}:{file}" for file in single]
        return found


def size_of(path: Path) -> int:
    """Bytes that a file, or the files of a folder, take."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
