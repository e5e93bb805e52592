"""A draft's weights cut to 4 bits: the reference's bits, and another model than the file's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from cpu_models import same
from gguf_models import metadata_of, tensors_of, write_model

from draftproof.backends.cpu.load import load_cpu_model
from draftproof.core import Logits
from draftproof.load import load

pytest.importorskip(
    "draftproof._native", reason="the CPU engine was not built", exc_type=ImportError
)

KINDS = gguf.GGMLQuantizationType
WIDE = (KINDS.F32, KINDS.F16, KINDS.BF16, KINDS.Q5_0, KINDS.Q5_1, KINDS.Q8_0)
NARROW = (KINDS.Q4_0, KINDS.Q4_1)
TOKENS = [5, 9, 40, 7, 7, 100]


def write(path: Path, kind: Any, *, cut: bool = False) -> Path:
    """A llama whose matrices are stored as `kind`; with `cut`, what they stand for as Q4_0."""
    stored: dict[str, Any] = {}
    for name, values in tensors_of("llama").items():
        if values.ndim == 1:
            stored[name] = values
            continue
        wide = gguf.quants.quantize(values, kind)
        if cut:
            stands_for = gguf.quants.dequantize(wide, kind)
            stored[name] = (gguf.quants.quantize(stands_for, KINDS.Q4_0), KINDS.Q4_0)
        else:
            stored[name] = (wide, kind)
    return write_model(path, metadata_of("llama"), stored)


def logits(path: Path, *, coarse: bool = False) -> Logits:
    model, _ = load_cpu_model(path, threads=1, coarse=coarse)
    return model.open((1,)).score(TOKENS, keep=len(TOKENS))


@pytest.mark.parametrize("kind", WIDE, ids=lambda kind: kind.name)
def test_wider_weights_become_the_references_4_bits(kind: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "wide.gguf", kind)
    got = logits(file, coarse=True)
    assert same(got, logits(write(tmp_path / "cut.gguf", kind, cut=True)))
    assert not same(got, logits(file))


@pytest.mark.parametrize("kind", NARROW, ids=lambda kind: kind.name)
def test_weights_of_4_bits_stay(kind: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "narrow.gguf", kind)
    assert same(logits(file, coarse=True), logits(file))


def test_drafts_are_cut_and_targets_never(tmp_path: Path) -> None:
    """The text is the target's own with either draft."""
    file = write(tmp_path / "model.gguf", KINDS.Q8_0)
    loaded = load(file, draft=file, drafter="model", draft_length=3, threads=1)
    kept = load(file, draft=file, drafter="model", draft_length=3, threads=1, draft_bits=None)
    assert loaded.target.info()["weights"] == "as in the file"  # type: ignore[attr-defined]
    assert loaded.drafter is not None
    assert kept.drafter is not None
    assert loaded.drafter.model.info()["weights"] == "cut to 4 bits"  # type: ignore[union-attr]
    assert kept.drafter.model.info()["weights"] == "as in the file"  # type: ignore[union-attr]
    plain = load(file, threads=1).generate([5, 6, 7], max_tokens=20).token_ids
    outputs = [pair.generate([5, 6, 7], max_tokens=20) for pair in (loaded, kept)]
    assert [output.token_ids for output in outputs] == [plain, plain]
    assert outputs[1].stats.acceptance == 1.0
    assert np.isfinite(outputs[0].stats.tokens_per_round)
