"""Bit for bit in bfloat16 on a CPU: a position's logits do not depend on the pass around it.

A property of the kernels that PyTorch has for this processor, so the tests run where the models
that are loaded here get this attention by default: where the CPU computes in bfloat16.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch

import draftproof as dp
from draftproof.backends import load_model
from draftproof.backends.attention import MOST_ROWS, NAME, row_attention
from draftproof.backends.causal import CausalModel
from draftproof.ports import Model

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no bfloat16 on this CPU"
)
IDS = tuple(int(i) for i in np.random.default_rng(0).integers(3, 60, size=150))
START = 50  # passes cross the buckets' edge at 64 and 128


@pytest.fixture(scope="module", params=["llama", "qwen2", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp(request.param)
    getattr(tiny_models, request.param)(1).save_pretrained(folder)
    return load_model(folder, dtype="bfloat16")


def rows(model: Model, size: int) -> np.ndarray:
    """The logits from START on, in passes of `size` tokens, each after a wrong draft."""
    session = model.open(IDS)
    session.score(IDS[:START], keep=0)
    found = []
    for at in range(START, len(IDS) - size, size):
        session.score([IDS[0]] * (1 + at % 5), keep=1)
        session.rewind(at)
        found.append(session.score(IDS[at : at + size], keep=size))
    session.close()
    return np.concatenate(found)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8, 12, 16, 17])
def test_a_position_has_the_same_bits_in_every_pass(model: Model, size: int) -> None:
    alone, together = rows(model, 1), rows(model, size)
    assert (together == alone[: len(together)]).all()


def test_the_control_shows_that_it_is_not_so_by_itself(model: Model) -> None:
    """transformers' own attention, and single rows: the bits differ."""
    loaded = model.model
    loaded.set_attn_implementation("sdpa")
    try:
        plain = CausalModel(loaded)
        alone, together = rows(plain, 1), rows(plain, 5)
        assert (together != alone[: len(together)]).any()
    finally:
        loaded.set_attn_implementation(NAME)


def test_it_is_attention(model: Model) -> None:
    """The same numbers as transformers' own, up to bfloat16's rounding."""
    ours = rows(model, 4)
    loaded = model.model
    loaded.set_attn_implementation("sdpa")
    try:
        theirs = rows(CausalModel(loaded), 4)
    finally:
        loaded.set_attn_implementation(NAME)
    assert np.abs(ours - theirs).max() < 0.05 * np.abs(theirs).max()


def test_a_pass_of_one_row_leaves_one_token(model: Model) -> None:
    session = model.open(IDS[:10])
    session.score(IDS[:9], keep=0)
    assert session.score(IDS[9:10], keep=1).shape == (1, model.vocab_size)
    assert session.length == 10
    session.close()


def test_greedy_text_is_plain_decodings(tmp_path: Path) -> None:
    """Bits, so no near-tie can flip: for every draft length, on 20 prompts."""
    tiny_models.llama(1).save_pretrained(tmp_path)
    target = load_model(tmp_path, dtype="bfloat16")
    draft = tiny_models.llama(2)
    plain = dp.from_transformers(target)
    for length in range(1, 9):
        spec = dp.from_transformers(target, draft, draft_length=length)
        for start in range(20):
            prompt = list(IDS[start : start + 7])
            expected = plain.generate(prompt, max_tokens=24, eos=[]).token_ids
            assert spec.generate(prompt, max_tokens=24, eos=[]).token_ids == expected


def test_long_passes_go_to_transformers() -> None:
    """A prompt is read by the usual attention: the same call, the same numbers."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    torch.manual_seed(0)
    n = MOST_ROWS + 1
    query, key, value = (torch.randn(1, 4, n, 8) for _ in range(3))
    layer = torch.nn.Module()
    ours, _ = row_attention(layer, query, key, value, None)
    theirs, _ = sdpa_attention_forward(layer, query, key, value, None)
    assert torch.equal(ours, theirs)
