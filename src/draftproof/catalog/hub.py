"""The Hugging Face hub: what a repository holds, and its files."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol, runtime_checkable

from draftproof.catalog.disk import DISK_FULL
from draftproof.errors import FetchFailed, ModelNotFound

PROBE_SECONDS = 5.0  # to notice that no hub is reachable; the client's own retries take minutes
# What a transformers model consists of. Pickled weights are left out: loading them runs code.
NEEDED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
NOT_NEEDED = ("consolidated*",)


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository; `sha256` is None for the small ones that git itself holds."""

    name: str
    size: int
    sha256: str | None


@runtime_checkable
class Hub(Protocol):
    """What the catalogue asks of a hub. Every method maps its failures into our errors."""

    def files(self, repo: str) -> dict[str, HubFile]:
        """The files of a repository by name."""
        ...

    def download(self, repo: str, files: Sequence[str], folder: Path) -> None:
        """Bring files into `folder`, going on where an earlier call stopped."""
        ...


class HuggingFaceHub:
    """The real hub, through its own client library."""

    def files(self, repo: str) -> dict[str, HubFile]:
        """The files of a repository by name.

        Raises:
            ModelNotFound: No such repository, or no right to read it.
            FetchFailed: The hub cannot be reached.
        """
        from huggingface_hub import HfApi

        with _mapped(repo):
            info = HfApi().model_info(repo, timeout=PROBE_SECONDS, files_metadata=True)
        return {
            file.rfilename: HubFile(
                file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None
            )
            for file in info.siblings or ()
        }

    def download(self, repo: str, files: Sequence[str], folder: Path) -> None:
        """Bring files into `folder`, going on where an earlier call stopped.

        Raises:
            ModelNotFound: No such repository or file, or no right to read it.
            FetchFailed: The hub cannot be reached.
        """
        from huggingface_hub import snapshot_download

        with _mapped(repo):
            snapshot_download(repo, local_dir=folder, allow_patterns=list(files))


@contextmanager
def _mapped(repo: str) -> Iterator[None]:
    """Turn the client library's errors into ours; a full disk passes through."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    # Its transport's errors have no common name of their own: they are the bases of this one.
    transport: tuple[type[BaseException], ...] = HfHubHTTPError.__bases__
    try:
        yield
    except GatedRepoError as error:
        raise ModelNotFound(
            f"{repo} on the Hugging Face hub is not open to you",
            why="its owner asks readers to accept terms first",
            remedy="accept them on the model's page, then log in with `hf auth login`",
        ) from error
    except LocalEntryNotFoundError as error:  # the library's word for "not reachable, not cached"
        raise _unreachable(repo, error) from error
    except (RepositoryNotFoundError, EntryNotFoundError, HFValidationError) as error:
        raise ModelNotFound(
            f"the Hugging Face hub has no model {repo}",
            why="the hub does not know the name, or it is private",
            remedy="check the spelling (org/name), or log in with `hf auth login`",
        ) from error
    except transport as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        raise _unreachable(repo, error) from error


def _unreachable(repo: str, error: BaseException) -> FetchFailed:
    return FetchFailed(
        f"{repo} could not be had from the Hugging Face hub",
        why=str(error).splitlines()[0] if str(error) else type(error).__name__,
        remedy="check the network, name a model of the catalogue (`draftproof models`), "
        "or give the path of a file",
    )


def choose(repo: str, files: dict[str, HubFile], file: str | None) -> list[HubFile]:
    """The files to fetch: the one asked for, or those that make a transformers model.

    Raises:
        ModelNotFound: The repository lacks the file, or holds no safetensors weights.
    """
    if file is not None:
        if file in files:
            return [files[file]]
        near = difflib.get_close_matches(file, files, cutoff=0.4)
        offered = near or sorted(name for name in files if name.endswith(".gguf"))[:8]
        raise ModelNotFound(
            f"{repo} on the Hugging Face hub has no file {file}",
            why=f"near it or loadable are: {', '.join(offered)}" if offered else "nothing is near",
            remedy=f"name a file that is there: {repo}:FILE.gguf",
        )
    chosen = [info for name, info in sorted(files.items()) if _is_needed(name)]
    if not any(info.name.endswith(".safetensors") for info in chosen):
        ggufs = sorted(name for name in files if name.endswith(".gguf"))
        raise ModelNotFound(
            f"{repo} on the Hugging Face hub has no safetensors weights",
            why=f"it has the files {', '.join(ggufs[:8])}"
            if ggufs
            else "nothing in it is loadable",
            remedy=f"name one file: {repo}:{ggufs[0]}" if ggufs else "choose another repository",
        )
    return chosen


def _is_needed(name: str) -> bool:
    """Whether a transformers model is loaded from it; folders hold other forms of the weights."""
    needed = any(fnmatch(name, pattern) for pattern in NEEDED)
    return needed and "/" not in name and not any(fnmatch(name, other) for other in NOT_NEEDED)
