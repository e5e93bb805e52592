"""An installation with and without the compiled module, and what it says of itself."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from importlib.util import find_spec
from pathlib import Path

import pytest

import draftproof
from draftproof.backends.cpu.load import cores
from draftproof.backends.cpu.native import require_native
from draftproof.backends.info import engines
from draftproof.cli import REFUSED, main
from draftproof.errors import MissingExtra

ROOT = Path(__file__).parents[2]

built = pytest.mark.skipif(
    find_spec("draftproof._native") is None, reason="the CPU engine was not built"
)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the module had not been built."""
    monkeypatch.delattr(draftproof, "_native", raising=False)
    monkeypatch.setitem(sys.modules, "draftproof._native", None)


@built
def test_the_engine_says_what_it_runs_on(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = require_native().kernels()
    assert kernels[-1] == "portable"
    main(["models"])
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last == engines()
    assert last[0].startswith(f"CPU engine: {kernels[0]} kernels")
    assert last[0].endswith(f"threads: {cores()}")
    assert last[1].startswith("PyTorch: ")


@built
def test_an_unknown_processor_runs_the_portable_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(require_native(), "kernels", lambda: ["portable"])
    assert engines()[0].startswith("CPU engine: portable kernels, as the processor has no")


@pytest.mark.usefixtures("without")
def test_without_the_module_it_says_why_and_what_to_do() -> None:
    with pytest.raises(MissingExtra, match="without the CPU engine") as caught:
        require_native()
    assert "C++17" in caught.value.why
    assert "draftproof[torch]" in caught.value.remedy
    assert engines()[0].startswith("CPU engine: none; this installation of draftproof is without")
    assert "install a compiler" in engines()[0]


def test_a_module_for_another_system_is_told_from_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suffix = EXTENSION_SUFFIXES[0]
    (tmp_path / f"_native{suffix}").write_bytes(b"no shared object")
    monkeypatch.delattr(draftproof, "_native", raising=False)
    monkeypatch.delitem(sys.modules, "draftproof._native", raising=False)
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    monkeypatch.setattr(draftproof, "__path__", [str(tmp_path)])
    with pytest.raises(MissingExtra, match="cannot be loaded") as caught:
        require_native()
    assert "another system" in caught.value.why


@pytest.mark.usefixtures("without")
def test_a_command_that_needs_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "some.gguf"
    model.write_bytes(b"GGUF")
    with pytest.raises(SystemExit) as caught:
        main(["generate", "--target", str(model), "--backend", "cpu", "x"])
    assert caught.value.code == REFUSED
    said = capsys.readouterr().err
    assert "without the CPU engine" in said
    assert "remedy:" in said


@built
def test_the_signatures_for_the_type_checker_are_current() -> None:
    """`make stubs` writes them."""
    stubgen = pytest.importorskip("nanobind.stubgen")
    generator = stubgen.StubGen(module=require_native(), quiet=True)
    generator.put(require_native())
    written = (ROOT / "src" / "draftproof" / "_native.pyi").read_text(encoding="utf-8")
    assert generator.get() == written, "run `make stubs`"
