"""The GGUF parser among damaged files, under AddressSanitizer and UndefinedBehaviorSanitizer.

`make fuzz` reads 100,000 of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FLAGS = ["-std=c++17", "-O0", "-g", "-pthread", "-fno-omit-frame-pointer", *SANITIZE]
SOURCES = (
    "tools/fuzz_gguf.cpp",
    "tools/gguf_headers.cpp",
    "src/gguf.cpp",
    "src/mapped_file.cpp",
    "src/types.cpp",
)
RUNS = 5_000


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def fuzzer(tmp_path: Path) -> Path:
    """The program, built here; skips where there is no compiler with both sanitizers."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    trial = tmp_path / "trial.cpp"
    trial.write_text("int main() {}\n")
    if run(compiler, *FLAGS, trial, "-o", tmp_path / "trial").returncode != 0:
        pytest.skip(f"{compiler} has no sanitizers")
    if run(tmp_path / "trial").returncode != 0:
        pytest.skip("programs with sanitizers do not run here")
    program = tmp_path / "fuzz_gguf"
    built = run(
        compiler, *FLAGS, "-I", NATIVE / "src", *(NATIVE / name for name in SOURCES), "-o", program
    )
    assert built.returncode == 0, built.stderr
    return program


def test_damaged_files_are_read_or_refused(fuzzer: Path) -> None:
    """Whole files are read, damaged ones read or refused, for more than 30 different reasons.

    Control: a byte read beyond a file ends the program.
    """
    control = run(fuzzer, "--control")
    assert control.returncode != 0
    assert "heap-buffer-overflow" in control.stderr

    done = run(fuzzer, "--runs", str(RUNS))
    assert done.returncode == 0, done.stdout + done.stderr
    *refusals, summary = done.stdout.splitlines()
    assert summary.startswith(f"{RUNS} damaged files")
    assert len(refusals) > 30
