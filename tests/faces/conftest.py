"""Shared by the tests of what users face."""

from pathlib import Path

import pytest


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder: commands write results where benchmarks/results is."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
