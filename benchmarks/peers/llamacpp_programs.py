"""llama.cpp's programs: where they are, how they are built, and its own timing of passes.

They come from a folder of the user's, or are built for this machine's own processor from the source
distribution of llama-cpp-python, which carries llama.cpp whole.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from statistics import median
from typing import Any

from draftproof.bench.peers import PeerFailed
from draftproof.catalog.disk import sha256_of
from draftproof.errors import InvalidInput, ResourceError

SERVER, BENCH, BATCHED = "llama-server", "llama-bench", "llama-batched-bench"
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
SOURCE = "source.json"  # beside the sources: what they are and how they were built
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",  # for this processor
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",  # these three would use the network
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
TARGETS = (SERVER, BENCH, BATCHED, "llama-quantize")


@dataclass(frozen=True, slots=True)
class Programs:
    """A folder of llama.cpp's programs, and what is known of where they come from."""

    folder: Path
    origin: dict[str, Any]

    def has(self, name: str) -> bool:
        """Whether a program is there."""
        return shutil.which(name, path=str(self.folder)) is not None

    def find(self, name: str) -> Path:
        """A program's path.

        Raises:
            InvalidInput: It is not there.
        """
        found = shutil.which(name, path=str(self.folder))
        if found is None:
            raise InvalidInput(
                f"{self.folder} holds no program {name}",
                why="it is one of llama.cpp's programs, and what is measured",
                remedy=f"give --llamacpp a folder that holds {SERVER} and {BENCH}, or leave "
                "--llamacpp out and let --build FOLDER make them",
            )
        return Path(found)


def programs(
    folder: Path | None, build: Path | None, tell: Callable[[str], None] = lambda what: None
) -> Programs:
    """The programs in `folder`, or those built in `build`, once.

    Raises:
        InvalidInput: Both or neither were given, or there are no programs.
        ResourceError: They cannot be built here.
    """
    if (folder is None) == (build is None):
        raise InvalidInput(
            f"{'no' if folder is None else 'more than one'} llama.cpp was named",
            why="one is measured",
            remedy="give either --llamacpp FOLDER (its programs) or --build FOLDER (made there)",
        )
    if build is not None:
        made = build / "llama.cpp"
        folder = made / "build" / "bin"
        if not (made / SOURCE).is_file():
            make(build, tell)
        origin = json.loads((made / SOURCE).read_text(encoding="utf-8"))
    else:
        origin = {}
    found = Programs(folder, origin)
    if not found.has(SERVER):
        return found  # `passes` does without; `speed` will say that it is missing
    version = subprocess.run(
        [found.find(SERVER), "--version"], capture_output=True, text=True, check=False
    )
    said = (version.stdout + version.stderr).strip().splitlines()
    return Programs(folder, {**origin, "version": said})


def make(folder: Path, tell: Callable[[str], None]) -> None:
    """Fetch the sources, build the programs, and write down what they are.

    Raises:
        ResourceError: A tool is missing, or a step failed; its output's end is shown.
    """
    if shutil.which("cmake") is None:
        raise ResourceError(
            "llama.cpp cannot be built: there is no cmake",
            why="its build is described for CMake",
            remedy="install CMake and a C++ compiler (pip install cmake ninja), or give "
            "--llamacpp a folder with the programs",
        )
    folder.mkdir(parents=True, exist_ok=True)
    tell(f"fetching the sources of {PACKAGE} {VERSION}")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE]
    step([*pip, "--dest", str(folder), f"{PACKAGE}=={VERSION}"])
    archive = next(folder.glob(f"{PACKAGE.replace('-', '_')}-{VERSION}.tar.gz"))
    made = folder / "llama.cpp"
    unpack(archive, made)
    build = str(made / "build")
    jobs = str(os.cpu_count() or 1)
    tell(f"building llama.cpp in {build} (some ten minutes)")
    step(["cmake", "-S", str(made), "-B", build, *OPTIONS])
    step(["cmake", "--build", build, "--config", "Release", "-j", jobs, "--target", *TARGETS])
    source = {
        "source": archive.name,
        "sha256": sha256_of(archive),
        "options": list(OPTIONS),
    }
    (made / SOURCE).write_text(json.dumps(source), encoding="utf-8")


def unpack(archive: Path, folder: Path) -> None:
    """Take llama.cpp's files alone out of the source distribution; it needs none of its links."""
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            content = tar.extractfile(member) if member.isfile() else None
            if content is None or parts[1:3] != ("vendor", "llama.cpp") or ".." in parts:
                continue
            path = folder.joinpath(*parts[3:])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())


def step(command: Sequence[str]) -> None:
    """Run a step of the build; its output is shown only where it fails."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise ResourceError(
            f"llama.cpp cannot be built: {' '.join(command[:4])} ... failed",
            why="\n".join(done.stdout.strip().splitlines()[-12:]),
            remedy="mend that, or give --llamacpp a folder with the programs",
        )


def bench_passes(
    found: Programs, model: Path, sizes: Sequence[int], depth: int, threads: int, repeats: int
) -> dict[int, float]:
    """Seconds of a pass over n new tokens behind `depth` others, by llama-bench.

    Such a pass computes the logits of its last token only.
    """
    command = [str(found.find(BENCH)), "-m", str(model), "-p", join(sizes), "-n", "0"]
    command += ["-d", str(depth), "-t", str(threads), "-r", str(repeats), "-o", "jsonl"]
    seconds = {
        int(line["n_prompt"]): median(line["samples_ns"]) / 1e9
        for line in lines_of(command, "n_prompt", "samples_ns")
    }
    return {n: answered(seconds, n, command) for n in sizes}


def batched_passes(
    found: Programs, model: Path, sizes: Sequence[int], depth: int, threads: int, repeats: int
) -> dict[int, float]:
    """The same by llama-batched-bench: n sequences behind one text, the logits of every token.

    That is what the scoring of a draft computes. `repeats` passes are timed together.
    """
    command = [str(found.find(BATCHED)), "-m", str(model), "-npp", str(depth), "-pps", "-kvu"]
    command += ["-npl", join(sizes), "-ntg", str(repeats), "-t", str(threads), "-tb", str(threads)]
    command += ["-c", str(depth + repeats * max(sizes)), "--output-format", "jsonl"]
    seconds = {
        int(line["pl"]): line["t_tg"] / line["tg"] for line in lines_of(command, "pl", "tg", "t_tg")
    }
    return {n: answered(seconds, n, command) for n in sizes}


def lines_of(command: Sequence[str], *needed: str) -> list[dict[str, Any]]:
    """The JSON lines that a program prints, among others."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = []
    for line in done.stdout.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and set(needed) <= set(entry):
            found.append(entry)
    if done.returncode != 0 or not found:
        raise failed(command, f"exit status {done.returncode}: {done.stderr.strip()[-800:]}")
    return found


def answered(seconds: dict[int, float], n: int, command: Sequence[str]) -> float:
    """The seconds at `n`."""
    if n not in seconds:
        raise failed(command, f"it printed no time for {n} tokens")
    return seconds[n]


def failed(command: Sequence[str], why: str) -> PeerFailed:
    """The error of a program that did not do what it was asked to."""
    return PeerFailed(
        f"{Path(command[0]).name} gave no figures",
        why=why,
        remedy="try it by hand: " + " ".join([Path(command[0]).name, *command[1:]]),
    )


def join(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes))
