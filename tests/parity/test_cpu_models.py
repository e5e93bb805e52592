"""The CPU engine against transformers in float32 on the same weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch

pytest.importorskip("draftproof._native", reason="the CPU engine was not built")

from draftproof.backends.cpu.load import load_cpu_model, runs
from draftproof.errors import InvalidSetting, UnsupportedModel

ROOT = Path(__file__).parents[2]


def accuracy() -> Any:
    """`benchmarks/accuracy.py`, whose figures the project reports."""
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "benchmarks/accuracy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.weights
def test_quantised_weights_give_the_references_laws() -> None:
    """The bounds of README on the model that the demo runs, over both texts together.

    Deterministic on one instruction set; another one rounds otherwise, and moves the share of equal
    first choices of 1,024 positions by a few thousandths.
    """
    found = accuracy().measure("smollm2-135m", 512)
    texts = [found["code"], found["prose"]]
    assert max(text["kl"] for text in texts) <= 0.01
    assert np.mean([text["top1"] for text in texts]) >= 0.97
    assert abs(np.mean([text["perplexity_ratio"] for text in texts]) - 1) <= 0.01


def test_the_comparison_sees_a_wrong_law() -> None:
    module = accuracy()
    logits = np.random.default_rng(0).normal(0, 2, (50, 40)).astype(np.float32)
    tokens = [i % 40 for i in range(50)]
    assert module.compare(logits, logits, tokens)["kl"] == 0
    noisy = logits + np.random.default_rng(1).normal(0, 0.3, logits.shape).astype(np.float32)
    found = module.compare(logits, noisy, tokens)
    assert found["kl"] > 0.01
    assert found["top1"] < 0.97


FAMILIES = {
    "llama": tiny_models.llama,
    "qwen2": tiny_models.qwen2,
    "qwen3": tiny_models.qwen3,
    "gemma3": tiny_models.gemma3,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_float_models_agree_to_a_thousandth(family: str, tmp_path: Path) -> None:
    """Weights in F32, drawn as transformers draws them; keys and values are kept in fp16.

    The control: with one weight in a hundred left out, logits differ by more than that.
    """
    model = FAMILIES[family](initializer_range=0.02, hidden_size=64, intermediate_size=128)
    model.save_pretrained(tmp_path / "model")
    tiny_models.tokenizer().save_pretrained(tmp_path / "model")
    tokens = np.random.default_rng(0).integers(0, tiny_models.VOCAB, 100).tolist()
    ours, _ = load_cpu_model(tmp_path / "model")
    logits = ours.open(tuple(tokens)).score(tokens, keep=100)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
        with_less = model.model.layers[0].mlp.down_proj.weight
        with_less.view(-1)[::100] = 0
        damaged = model(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(logits - expected).max() < 1e-3
    assert np.abs(damaged - expected).max() > np.abs(logits - expected).max()


def test_settings_without_meaning_are_refused(tmp_path: Path) -> None:
    tiny_models.llama().save_pretrained(tmp_path / "model")
    for settings in ({"threads": 0}, {"cache_bytes": 0}, {"kernels": "vax"}):
        with pytest.raises(InvalidSetting):
            load_cpu_model(tmp_path / "model", **settings)


def test_what_it_does_not_run_is_told_by_name(tmp_path: Path) -> None:
    tiny_models.gpt2().save_pretrained(tmp_path / "model")
    reason = runs(tmp_path / "model")
    assert reason is not None
    assert "gpt2" in reason
    assert "llama" in reason
    with pytest.raises(UnsupportedModel, match="gpt2"):
        load_cpu_model(tmp_path / "model")
