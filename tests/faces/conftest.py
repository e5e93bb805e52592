"""Shared by the tests of what users face."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftproof.cli import main
from draftproof.engine import Speculator
from draftproof.load import load

Outcome = tuple[int, str, str]  # exit status, stdout and stderr


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder: commands write results where benchmarks/results is."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The taught model with its tokenizer, and a draft under `draft`."""
    import taught_models  # which imports PyTorch

    path = tmp_path_factory.mktemp("models") / "taught"
    target = taught_models.taught()
    for where, model in ((path, target), (path / "draft", taught_models.near(target, 0.5))):
        model.save_pretrained(where)
        taught_models.bpe(chat_template=taught_models.CHAT).save_pretrained(where)
    return path


@pytest.fixture(scope="session")
def api(folder: Path) -> Speculator:
    return load(folder, draft=folder / "draft", draft_length=4, device="cpu")


@pytest.fixture
def outcome(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """What a command line comes to."""

    def outcome(*given: Any) -> Outcome:
        capsys.readouterr()
        status = 0
        try:
            main([*map(str, given)])
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        return status, *capsys.readouterr()

    return outcome


@pytest.fixture
def run(folder: Path, outcome: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """What a command on the model in `folder` comes to."""

    def run(command: str, *arguments: Any) -> Outcome:
        return outcome(command, "--target", folder, "--device", "cpu", *arguments)

    return run
