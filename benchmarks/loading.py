"""How long models take to load, and how much memory at most, each in a process of its own.

    python benchmarks/loading.py qwen2.5-coder-1.5b qwen2.5-coder-0.5b smollm2-135m

Peak memory is that of the whole process, with Python and its libraries, after 16 tokens were
written; what they and the keys and values take of it is told beside it. The files are read
once before, so that a cold disk is not what is measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

from draftproof.bench.provenance import check_output, provenance, write_result
from draftproof.catalog import resolve
from draftproof.load import load

TOKENS = 16


def alone(name: str) -> None:
    """What a process of its own does: load, write a little, print its account."""
    before = psutil.Process().memory_info().rss
    started = perf_counter()
    speculator = load(name)
    loaded = perf_counter()
    result = speculator.generate("The days of the week are", max_tokens=TOKENS, temperature=0)
    length = result.prompt_tokens + len(result.token_ids)
    account = {
        "load_seconds": loaded - started,
        "before_bytes": before,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "cache_bytes": length * speculator.target.cache_bytes_per_token,  # type: ignore[attr-defined]
    }
    print(json.dumps(account))


def measured(name: str, repeats: int) -> dict[str, Any]:
    file = Path(resolve(name))
    size = file.stat().st_size
    with file.open("rb") as reading:  # in pieces: a child's peak begins with its parent's
        while reading.read(1 << 20):
            pass
    command = [sys.executable, __file__, "--alone", name]
    runs = [
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        for _ in range(repeats)
    ]
    account = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    account["file_bytes"] = size
    used = account["peak_bytes"] - account["cache_bytes"]
    account["peak_over_file"] = used / size
    account["peak_over_file_less_python"] = (used - account["before_bytes"]) / size
    account["runs"] = runs
    return account


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--alone", metavar="MODEL", help="what the processes are started with")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.alone:
        alone(given.alone)
        return
    check_output(given.output)
    found = {}
    for name in given.models:
        found[name] = measured(name, given.repeats)
        print(
            f"{name}: loaded in {found[name]['load_seconds']:.2f} s, at most "
            f"{found[name]['peak_bytes'] / 1e6:.0f} MB, {found[name]['peak_over_file']:.2f} times "
            f"the file without keys and values ({found[name]['peak_over_file_less_python']:.2f} "
            "without Python and its libraries, too)"
        )
    result = {
        "models": found,
        "provenance": provenance({str(i): name for i, name in enumerate(given.models)}, {}),
    }
    write_result("loading", result, given.output)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
