"""Which backend runs a model, what it is told, and what is refused; the loaders are stand-ins."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from fakes import FakeModel, FakeTokenizer

import draftproof as dp
from draftproof.backends import pretrained
from draftproof.backends.info import FIELDS, model_info
from draftproof.bench.provenance import provenance
from draftproof.cli import REFUSED, main
from draftproof.cli.options import Size
from draftproof.drafters import PromptLookup
from draftproof.errors import InvalidSetting, ModelCorrupt
from draftproof.load import load_parts

REASON = "the architecture mamba is not one it runs"


@dataclass
class Loaders:
    """Stand-ins for both backends' loaders; `calls` are (backend, file, settings)."""

    unsupported: set[str] = field(default_factory=set)
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)

    def runs(self, path: Path) -> str | None:
        return REASON if path.name in self.unsupported else None

    def cpu(self, path: Path, **settings: Any) -> tuple[FakeModel, FakeTokenizer]:
        self.calls.append(("cpu", path.name, settings))
        return FakeModel(FakeTokenizer().vocab_size, seed=1), FakeTokenizer()

    def torch(self, path: Path, **settings: Any) -> tuple[FakeModel, FakeTokenizer]:
        self.calls.append(("torch", path.name, settings))
        return FakeModel(FakeTokenizer().vocab_size, seed=1), FakeTokenizer()

    @property
    def used(self) -> list[tuple[str, str]]:
        return [(backend, name) for backend, name, _ in self.calls]


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> Loaders:
    made = Loaders()
    engine: Any = ModuleType("draftproof.backends.cpu.load")
    engine.runs, engine.load_cpu_model = made.runs, made.cpu
    monkeypatch.setitem(sys.modules, "draftproof.backends.cpu.load", engine)
    monkeypatch.setattr(pretrained, "load_model_and_tokenizer", made.torch)
    monkeypatch.setattr("draftproof.tuning.sample_texts", lambda: ["the cat sat"])
    return made


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Two GGUF files and two folders, as far as choosing looks at them."""
    for name in ("big.gguf", "small.gguf"):
        (tmp_path / name).touch()
    for name in ("folder", "little"):
        (tmp_path / name).mkdir()
    return tmp_path


NO_SETTINGS = {"threads": None, "cache_bytes": None, "quantize": None, "coarse": False}


def test_a_gguf_file_runs_on_the_cpu_engine_and_a_folder_on_pytorch(
    loaders: Loaders, models: Path
) -> None:
    load_parts(models / "big.gguf")
    load_parts(models / "folder")
    assert loaders.calls == [
        ("cpu", "big.gguf", NO_SETTINGS),
        ("torch", "folder", {"device": None, "dtype": None}),
    ]


def test_what_the_engine_does_not_run_goes_to_pytorch_with_one_line(
    loaders: Loaders, models: Path
) -> None:
    loaders.unsupported = {"big.gguf"}
    told: list[str] = []
    load_parts(models / "big.gguf", progress=lambda what, done, total: told.append(what))
    assert loaders.used == [("torch", "big.gguf")]
    assert told == [f"big.gguf runs on PyTorch, not on the CPU engine: {REASON}"]
    with pytest.warns(UserWarning, match=REASON):
        dp.load(models / "big.gguf")


def test_a_backend_that_was_asked_for_is_used(loaders: Loaders, models: Path) -> None:
    """An engine that cannot run the model says so when it loads; nothing takes its place."""
    loaders.unsupported = {"big.gguf"}
    load_parts(models / "big.gguf", backend="cpu", threads=2, cache_memory=2**30)
    load_parts(models / "big.gguf", backend="torch", dtype="float32")
    load_parts(models / "folder", backend="cpu", quantize=4)
    assert loaders.calls == [
        ("cpu", "big.gguf", NO_SETTINGS | {"threads": 2, "cache_bytes": 2**30}),
        ("torch", "big.gguf", {"device": None, "dtype": "float32"}),
        ("cpu", "folder", NO_SETTINGS | {"quantize": "4"}),
    ]


@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"device": "cuda"}])
def test_what_only_pytorch_has_is_a_wish_for_pytorch(
    loaders: Loaders, models: Path, settings: dict[str, Any]
) -> None:
    load_parts(models / "big.gguf", **settings)
    assert loaders.calls == [("torch", "big.gguf", {"device": None, "dtype": None, **settings})]


def test_the_device_cpu_is_where_the_engine_computes(loaders: Loaders, models: Path) -> None:
    load_parts(models / "big.gguf", device="cpu")
    load_parts(models / "big.gguf", device="cpu", backend="cpu")
    assert loaders.used == [("cpu", "big.gguf")] * 2


@pytest.mark.parametrize(
    ("target", "draft", "settings", "used"),
    [
        ("big.gguf", "small.gguf", {}, ("cpu", "cpu")),
        ("big.gguf", "little", {}, ("cpu", "cpu")),  # the target's, where it can
        ("folder", "small.gguf", {}, ("torch", "torch")),
        ("folder", "little", {}, ("torch", "torch")),
        ("folder", "little", {"backend": "cpu"}, ("cpu", "cpu")),
        ("big.gguf", "small.gguf", {"backend": "torch"}, ("torch", "torch")),
        ("big.gguf", "small.gguf", {"draft_backend": "torch"}, ("cpu", "torch")),
        ("folder", "small.gguf", {"draft_backend": "cpu", "device": "cuda"}, ("torch", "cpu")),
        ("big.gguf", "small.gguf", {"draft_dtype": "float32"}, ("cpu", "torch")),
        ("big.gguf", "small.gguf", {"draft_device": "cuda", "threads": 2}, ("cpu", "torch")),
        ("big.gguf", "little", {"quantize": 8}, ("cpu", "cpu")),
    ],
)
def test_the_draft_runs_where_the_target_does(
    loaders: Loaders,
    models: Path,
    target: str,
    draft: str,
    settings: dict[str, Any],
    used: tuple[str, str],
) -> None:
    load_parts(models / target, models / draft, **settings)
    assert loaders.used == [(used[0], target), (used[1], draft)]
    for backend, name, given in loaders.calls:
        if backend == "cpu":
            assert given["threads"] == settings.get("threads")
            bits = str(settings["quantize"]) if "quantize" in settings else None
            assert given["quantize"] == (None if name.endswith(".gguf") else bits)


def test_a_draft_that_the_engine_does_not_run_goes_to_pytorch(
    loaders: Loaders, models: Path
) -> None:
    loaders.unsupported = {"little"}
    told: list[str] = []
    load_parts(
        models / "big.gguf",
        models / "little",
        progress=lambda what, done, total: told.append(what),
    )
    assert loaders.used == [("cpu", "big.gguf"), ("torch", "little")]
    assert [line.split()[0] for line in told] == ["little"]


def test_pairs_that_are_loaded_by_name_keep_what_they_learn(
    loaders: Loaders, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file for each pair, drafter and machine; none for objects or fixed lengths."""
    kept = models / "kept"
    monkeypatch.setenv("DRAFTPROOF_PROFILES", str(kept))

    def count(*arguments: Any, **settings: Any) -> int:
        model = dp.load(models / "big.gguf", *arguments, **settings)
        model.generate((1, 2, 3, 1, 2), max_tokens=4)
        return len(list(kept.glob("*.json")))

    assert count(draft="lookup", draft_length=3) == 0
    assert count(draft=PromptLookup()) == 0
    assert count() == 0
    assert count(draft="lookup") == 1
    assert count(draft="lookup") == 1
    assert count(draft="suffix") == 2
    assert count(draft=models / "small.gguf") == 3
    assert count(draft=models / "small.gguf", drafter="model") == 4
    (models / "small.gguf").write_bytes(b"another")
    assert count(draft=models / "small.gguf") == 5
    monkeypatch.setattr(sys.modules["draftproof.backends.info"], "cpu_name", lambda: "another")
    assert count(draft="lookup") == 6
    monkeypatch.setenv("DRAFTPROOF_PROFILES", "off")
    assert count(draft="ngram") == 6


REFUSED_TOGETHER = [
    ("big.gguf", ["--backend", "cpu", "--device", "cuda"], "device cuda"),
    ("big.gguf", ["--backend", "cpu", "--dtype", "float32"], "dtype float32"),
    ("folder", ["--threads", "2"], "threads"),
    ("folder", ["--cache-memory", "1GiB", "--backend", "torch"], "cache_memory"),
    ("folder", ["--quantize", "8"], "quantize"),
    ("big.gguf", ["--quantize", "8"], "cannot be quantised"),
    ("big.gguf", ["--dtype", "float32", "--threads", "2"], "threads"),
]


@pytest.mark.parametrize(
    "command", [["generate", "hello"], ["chat"], ["plan"], ["check"], ["bench", "curve"],
                ["bench", "speed"]], ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize(("target", "flags", "what"), REFUSED_TOGETHER)
def test_combinations_that_mean_nothing_are_refused_before_loading(
    loaders: Loaders,
    models: Path,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    target: str,
    flags: list[str],
    what: str,
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--target", str(models / target), *flags])
    assert ended.value.code == REFUSED
    error, why, remedy = capsys.readouterr().err.splitlines()[-3:]
    assert what in error
    assert why.startswith("  why: ")
    assert remedy.startswith("  remedy: ")
    assert loaders.calls == []


def test_an_unknown_backend_and_a_damaged_file_are_named(
    loaders: Loaders, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidSetting, match="no backend is called 'gpu'"):
        dp.load(models / "big.gguf", backend="gpu")

    def damaged(path: Path) -> str:
        raise ModelCorrupt(f"{path.name} is cut", why="damaged", remedy="fetch it again")

    monkeypatch.setattr(sys.modules["draftproof.backends.cpu.load"], "runs", damaged)
    with pytest.raises(ModelCorrupt):
        dp.load(models / "big.gguf")
    assert loaders.calls == []


def test_flags_reach_the_loader(
    loaders: Loaders, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--backend", "cpu", "--threads", "3", "--cache-memory", "1.5 GiB", "--quantize", "4"]
    main(["generate", "--target", str(models / "folder"), *flags, "--max-tokens", "2", "hello"])
    settings = {"threads": 3, "cache_bytes": 3 * 2**29, "quantize": "4", "coarse": False}
    assert loaders.calls == [("cpu", "folder", settings)]


@pytest.mark.parametrize(
    ("flags", "coarse"),
    [([], True), (["--draft-bits", "4"], True), (["--draft-bits", "stored"], False)],
)
def test_a_gguf_draft_is_cut_to_4_bits_unless_told_otherwise(
    loaders: Loaders, models: Path, flags: list[str], coarse: bool
) -> None:
    """The target is never cut."""
    pair = ["--target", str(models / "big.gguf"), "--draft", str(models / "small.gguf")]
    main(["generate", *pair, *flags, "--max-tokens", "2", "hello"])
    assert [given["coarse"] for _, _, given in loaders.calls] == [False, coarse]
    with pytest.raises(InvalidSetting, match="draft_bits is 8"):
        dp.load(models / "big.gguf", draft=models / "small.gguf", draft_bits=8)


@pytest.mark.parametrize(
    ("text", "count"),
    [("4GiB", 4 * 2**30), ("512 mib", 2**29), ("2GB", 2 * 10**9), ("100kb", 10**5), ("77", 77),
     ("77B", 77), ("1.5K", 1500)],
)  # fmt: skip
def test_sizes(text: str, count: int) -> None:
    assert Size().convert(text, None, None) == count


@pytest.mark.parametrize("text", ["", "GiB", "4 potatoes", "-1GiB", "1e9", "4TiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match="4GiB"):
        Size().convert(text, None, None)


def test_reports_say_what_ran_a_model() -> None:
    class Engine(FakeModel):
        def info(self) -> dict[str, object]:
            return {"backend": "cpu", "kernels": "avx2", "threads": 2, "formats": {"Q4_K": 3}}

    told = model_info(Engine())
    assert set(FIELDS) < set(told)
    assert (told["backend"], told["kernels"], told["device"]) == ("cpu", "avx2", None)
    assert told["formats"] == {"Q4_K": 3}
    silent = model_info(FakeModel())
    assert silent == {**dict.fromkeys(FIELDS), "backend": "FakeModel"}
    names = {"target": "smollm2-135m", "draft": "counts.npz"}
    found = provenance({**names, "draft": None}, {"target": Engine(), "draft": None})["models"]
    assert found["target"]["name"] == "smollm2-135m"
    assert found["target"]["threads"] == 2
    assert "draft" not in found
