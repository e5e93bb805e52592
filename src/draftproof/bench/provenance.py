"""Where a figure comes from: code, machine, versions, models and the command.

No figure of the project is written down without this beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from draftproof.catalog import ENTRIES, resolve
from draftproof.catalog.disk import sha256_of
from draftproof.errors import InvalidInput
from draftproof.files import replacing
from draftproof.ports import Model

PACKAGES = ("draftproof", "numpy", "tokenizers", "torch", "transformers")
RESULTS = Path("benchmarks", "results")


def provenance(
    models: Mapping[str, str | None], loaded: Mapping[str, Model | None] | None = None
) -> dict[str, Any]:
    """Everything that a reader needs to judge a figure, or to measure it again.

    Args:
        models: What each role's model was called by the user; None leaves the role out.
        loaded: The roles' models, which say what ran them: backend, kernels, threads and the like.

    Returns:
        Ready for `json.dumps`. What cannot be found out is None.
    """
    from draftproof.backends.info import cpu_name, model_info, runtime_info

    ran = {role: model_info(model) for role, model in (loaded or {}).items() if model is not None}
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        **revision(),
        "models": {
            role: {**describe(name), **ran.get(role, {})}
            for role, name in models.items()
            if name is not None
        },
        "cpu": cpu_name(),
        "cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "os": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in PACKAGES},
        "runtime": runtime_info(),
    }


def revision() -> dict[str, str | bool | None]:
    """The commit of this code and whether the tree differs from it; None outside a checkout.

    An installed copy may lie inside somebody else's repository: only a tracked file counts.
    """
    here = Path(__file__)
    if _git("ls-files", "--error-unmatch", here.name) is None:
        return {"commit": None, "dirty": None}
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": None if changes is None else changes != "",
    }


def describe(name: str) -> dict[str, str | None]:
    """A model's name and the SHA-256 of what it was loaded from."""
    entry = ENTRIES.get(name)
    if entry is not None:
        return {"name": name, "sha256": entry.sha256}
    path = Path(resolve(name))
    if path.is_file():
        return {"name": name, "sha256": sha256_of(path)}
    return {"name": name, "sha256": _sha256_of_folder(path) if path.is_dir() else None}


def installed(package: str) -> str | None:
    """A package's version; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_result(name: str, result: Mapping[str, Any], output: Path | None) -> Path | None:
    """Write a result whole or not at all.

    Args:
        name: What was measured; begins the file's name.
        result: Ready for `json.dumps`.
        output: Where to; None takes `benchmarks/results/` where the current folder has it.

    Returns:
        Where it is; None where it was not written.

    Raises:
        InvalidInput: The file cannot be written.
    """
    if output is None:
        if not RESULTS.is_dir():
            return None
        stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
        output = RESULTS / f"{name}-{stamp}.json"
    write_whole(output, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return output


def check_output(output: Path | None, option: str = "--output") -> None:
    """Refuse a file in a folder that is not there or not writable, before anything is measured.

    Raises:
        InvalidInput: As it says.
    """
    if output is None:
        return
    if not output.parent.is_dir():
        raise _unwritable(output, f"there is no folder {output.parent}", option)
    if not os.access(output.parent, os.W_OK):
        raise _unwritable(output, f"the folder {output.parent} cannot be written", option)


def write_whole(output: Path, text: str, option: str = "--output") -> None:
    """Write a file whole or not at all.

    Args:
        output: The file that the user's `option` named.
        text: What it is to hold.
        option: For the error.

    Raises:
        InvalidInput: It cannot be written.
    """
    try:
        with replacing(output) as file:
            file.write(text.encode())
    except OSError as error:
        raise _unwritable(output, str(error), option) from error


def _unwritable(output: Path, why: str, option: str) -> InvalidInput:
    return InvalidInput(
        f"{output} cannot be written",
        why=why,
        remedy=f"give {option} a file in a folder that exists and can be written",
    )


def _sha256_of_folder(folder: Path) -> str:
    """The checksum over the names and checksums of a folder's files."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n".encode())
    return digest.hexdigest()


def _git(*arguments: str) -> str | None:
    """What git says about the folder of this file; None where there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
