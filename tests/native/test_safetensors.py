"""Folders of safetensors for the CPU engine: names, metadata, number formats, damage."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_models
import torch
from gguf.quants import dequantize, quantize

from draftproof.backends.cpu.config import read_config
from draftproof.backends.cpu.quantize import quantize_rows
from draftproof.backends.cpu.safetensors import Folder, open_folder
from draftproof.errors import DraftproofError, ModelCorrupt, ModelNotFound, UnsupportedModel

_native: Any = pytest.importorskip(
    "draftproof._native", reason="the CPU engine was not built", exc_type=ImportError
)

TOLERANCE = 3e-3
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 32.0,
    "original_max_position_embeddings": 16,
}
MSCALE = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.3}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
GEMMA_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {**LINEAR, "rope_theta": 1e6},
}


def save(model: Any, path: Path, dtype: torch.dtype = torch.float32, **settings: Any) -> Path:
    """Norms and biases are drawn, too, so that a wrong one shows."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                value.add_(torch.randn(value.shape, generator=generator), alpha=0.3)
    model.to(dtype).save_pretrained(path, **settings)
    return path


def build(folder: Folder) -> Any:
    config = read_config(folder.metadata, folder.vocab_size, "test", folder.rope_factors)
    engine = _native.Model(**config.arguments, threads=1, kernels=None, cache_bytes=1 << 24)
    for name, kind, rows, cols, data in folder.tensors:
        assert engine.set(name, kind, rows, cols, data), name
    engine.finish()
    return engine


def score(engine: Any, tokens: np.ndarray) -> np.ndarray:
    rows = len(tokens)
    return engine.score(
        [engine.open()],
        np.zeros(rows, np.int32),
        tokens.astype(np.int32),
        np.arange(-1, rows - 1, dtype=np.int32),
        np.ones(rows, np.bool_),
    )


def logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(tokens)[None]).logits[0].numpy()


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (tiny_models.llama, {}),
        (tiny_models.llama, {"tie_word_embeddings": True, "attention_bias": True}),
        (tiny_models.llama, {"rope_parameters": LLAMA3}),
        (tiny_models.llama, {"rope_parameters": LINEAR}),
        (tiny_models.mistral, {}),
        (tiny_models.mistral, {"sliding_window": None}),
        (tiny_models.qwen2, {}),
        (tiny_models.qwen2, {"rope_parameters": YARN, "tie_word_embeddings": False}),
        (tiny_models.qwen2, {"rope_parameters": MSCALE}),
        (
            tiny_models.qwen2,
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        ),
        (tiny_models.qwen3, {}),
        (tiny_models.gemma3, {}),
        (tiny_models.gemma3, {"rope_parameters": GEMMA_ROPE, "query_pre_attn_scalar": 5}),
    ],
)
def test_logits_are_those_of_transformers(
    make: Callable[..., Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    """Keys and values are kept in 16 bits, hence the tolerance; a setting changes more."""
    tokens = np.random.default_rng(0).integers(3, tiny_models.VOCAB, 64)
    model = make(initializer_range=0.1, **settings)
    engine = build(open_folder(save(model, tmp_path / "model")))
    expected = logits(model, tokens)
    np.testing.assert_allclose(score(engine, tokens), expected, atol=TOLERANCE, rtol=0)
    if settings:
        other = make(initializer_range=0.1)
        save(other, tmp_path / "other")
        assert np.abs(logits(other, tokens) - expected).max() > 10 * TOLERANCE


def test_the_configurations_of_earlier_versions_mean_the_same(tmp_path: Path) -> None:
    path = save(tiny_models.llama(rope_parameters=LLAMA3), tmp_path)
    now = open_folder(path)
    config = json.loads((path / "config.json").read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    del config["head_dim"]
    (path / "config.json").write_text(json.dumps(config))
    before = open_folder(path)
    assert before.metadata == now.metadata
    assert now.rope_factors is not None
    np.testing.assert_array_equal(before.rope_factors, now.rope_factors)


@pytest.mark.parametrize(
    ("dtype", "kind"), [(torch.bfloat16, "BF16"), (torch.float16, "F16"), (torch.float32, "F32")]
)
def test_matrices_are_kept_as_stored(dtype: torch.dtype, kind: str, tmp_path: Path) -> None:
    """In shards, too; norms become F32 exactly."""
    model = tiny_models.qwen2()
    folder = open_folder(save(model, tmp_path, dtype, max_shard_size="10KB"))
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tensors = {tensor.name: tensor for tensor in folder.tensors}
    assert folder.stored_bytes == sum(tensor.data.nbytes for tensor in tensors.values())
    query = model.model.layers[1].self_attn.q_proj
    stored = tensors["blk.1.attn_q.weight"]
    assert (stored.type, stored.rows, stored.cols) == (kind, *query.weight.shape)
    assert stored.data.tobytes() == query.weight.detach().view(torch.uint8).numpy().tobytes()
    assert tensors["blk.1.attn_q.bias"].rows == 1
    norm = tensors["blk.0.attn_norm.weight"]
    assert norm.type == "F32"
    expected = model.model.layers[0].input_layernorm.weight.detach().float().numpy()
    np.testing.assert_array_equal(norm.data.view(np.float32), expected)


def blocks(seed: int = 0) -> np.ndarray:
    """Drawn, and the cases in which a rounding could differ."""
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((64, 96)).astype(np.float32)
    rows[1] = 0
    rows[2] *= 1e-6
    rows[3, :32] = np.arange(-16, 16) / 2  # halves, once the scale is a power of two
    rows[3, 32:64] = np.linspace(-127, 127, 32)
    rows[4, 0], rows[4, 1] = 3, -3  # the first of equal magnitudes decides
    rows[4, 2:32] = 0
    rows[5] = generator.integers(-127, 128, 96) + 0.5
    rows[5, ::32] = 127
    return rows


@pytest.mark.parametrize(
    ("kind", "code"),
    [("Q8_0", gguf.GGMLQuantizationType.Q8_0), ("Q4_0", gguf.GGMLQuantizationType.Q4_0)],
)
def test_quantised_bytes_are_those_of_the_gguf_package(kind: str, code: Any) -> None:
    rows = blocks()
    ours = quantize_rows(rows, kind)
    theirs = quantize(rows, code)
    assert np.array_equal(ours, theirs)
    assert not np.array_equal(ours, quantize(rows * np.float32(1.001), code))
    assert not np.array_equal(ours, quantize_rows(blocks(1), kind))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_tiny_weights_become_zero_and_none_is_infinite(kind: str) -> None:
    rows = np.full((1, 32), 1e-41, np.float32)
    assert quantize_rows(rows, kind)[:, :2].copy().view("<f2") == 0
    for bad in (np.nan, np.inf, 1e9):
        rows[0, 7] = bad
        with pytest.raises(ValueError, match="not finite"):
            quantize_rows(rows, kind)


@pytest.mark.parametrize(("bits", "code"), [("8", "Q8_0"), ("4", "Q4_0")])
def test_a_folder_is_quantised_as_it_is_read(bits: Any, code: str, tmp_path: Path) -> None:
    """Rows of 48 weights stay as they are; with 4 bits, embedding and output keep 8."""
    model = tiny_models.llama()
    folder = open_folder(save(model, tmp_path, torch.bfloat16), quantize=bits)
    tensors = {tensor.name: tensor for tensor in folder.tensors}
    assert folder.stored_bytes == sum(tensor.data.nbytes for tensor in tensors.values())
    assert {tensors[name].type for name in ("token_embd.weight", "output.weight")} == {"Q8_0"}
    assert tensors["blk.0.ffn_down.weight"].type == "BF16"
    gate = tensors["blk.0.ffn_gate.weight"]
    assert gate.type == code
    weights = model.model.layers[0].mlp.gate_proj.weight.detach().float().numpy()
    kind = gguf.GGMLQuantizationType[code]
    assert np.array_equal(gate.data.reshape(gate.rows, -1), quantize(weights, kind))
    error = dequantize(gate.data.reshape(gate.rows, -1), kind) - weights
    assert 0 < np.abs(error).max() < (0.01 if bits == "8" else 0.15)
    assert np.isfinite(score(build(folder), np.arange(3, 20))).all()


# --- damage and refusals ---


def change(path: Path, **settings: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    config.update(settings)
    kept = {key: value for key, value in config.items() if value != "remove"}
    (path / "config.json").write_text(json.dumps(kept))


def rewrite_header(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the header of model.safetensors and keep its data."""
    file = path / "model.safetensors"
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    edit(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tiny_models.llama(), tmp_path)


NAME = "model.norm.weight"


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"model_type": "gpt2"}, UnsupportedModel, "model_type 'gpt2'"),
        ({"hidden_act": "relu"}, UnsupportedModel, "hidden_act"),
        ({"quantization_config": {"bits": 4}}, UnsupportedModel, "quantised"),
        ({"rope_parameters": {**YARN, "truncate": False}}, UnsupportedModel, "yarn"),
        ({"rope_parameters": {**LINEAR, "rope_type": "dynamic"}}, UnsupportedModel, "dynamic"),
        ({"vocab_size": "remove"}, ModelCorrupt, "vocab_size"),
        ({"num_attention_heads": "many"}, ModelCorrupt, "many"),
        ({"num_attention_heads": 0, "head_dim": None}, ModelCorrupt, "ZeroDivision"),
        ({"rope_parameters": {"rope_type": "linear"}}, ModelCorrupt, "factor"),
        ({"rope_parameters": [1]}, ModelCorrupt, "config.json"),
        ({"eos_token_id": "x"}, ModelCorrupt, "config.json"),
    ],
)
def test_a_configuration_is_refused_by_name(
    folder: Path, settings: dict[str, Any], error: type[DraftproofError], says: str
) -> None:
    change(folder, **settings)
    with pytest.raises(error, match=says):
        open_folder(folder)


@pytest.mark.parametrize(
    ("edit", "error", "says"),
    [
        (lambda h: h[NAME].update(dtype="I8"), UnsupportedModel, "I8"),
        (lambda h: h[NAME].update(shape=[31]), ModelCorrupt, "do not fit"),
        (lambda h: h[NAME].update(shape=[2, 4, 4]), ModelCorrupt, "3 dimensions"),
        (lambda h: h[NAME].update(shape=[-32]), ModelCorrupt, "whole number"),
        (lambda h: h[NAME].update(data_offsets=[128, 0]), ModelCorrupt, "before it begins"),
        (lambda h: h[NAME].update(data_offsets=[0, 1 << 60]), ModelCorrupt, "instead of"),
        (lambda h: h[NAME].pop("dtype"), ModelCorrupt, "dtype"),
        (lambda h: h.update({NAME: 3}), ModelCorrupt, "model.safetensors"),
        (lambda h: h.update({"score.weight": h.pop(NAME)}), UnsupportedModel, "score.weight"),
        (lambda h: h.pop("lm_head.weight"), ModelCorrupt, "lm_head"),
    ],
)
def test_a_header_is_refused_by_name(
    folder: Path,
    edit: Callable[[dict[str, Any]], Any],
    error: type[DraftproofError],
    says: str,
) -> None:
    rewrite_header(folder, edit)
    with pytest.raises(error, match=says):
        open_folder(folder)


def test_missing_and_truncated_files(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    whole = open_folder(folder)
    for size in (0, 7, 8, 100, len(data) - 1):
        file.write_bytes(data[:size])
        with pytest.raises(ModelCorrupt, match="fetch it again"):
            open_folder(folder)
    with pytest.raises(ModelCorrupt, match="ends within"):
        list(whole.tensors)  # it shrank after it was opened
    file.unlink()
    with pytest.raises(ModelNotFound, match=r"model\.safetensors"):
        open_folder(folder)
    index = {"weight_map": {"a": "one.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelCorrupt, match="named in the index"):
        open_folder(folder)
    index = {"weight_map": {"a": "../one.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelCorrupt, match="outside"):
        open_folder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelCorrupt, match=r"config\.json"):
        open_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        open_folder(folder)


def test_no_damaged_header_ends_in_another_error(folder: Path) -> None:
    """2,000 headers with a few bytes changed: each is read, or refused by an error of ours."""
    generator = np.random.default_rng(0)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    refused = 0
    for _ in range(2000):
        changed = bytearray(data)
        for place in generator.integers(0, 8 + size, generator.integers(1, 4)):
            changed[place] = generator.integers(0, 256)
        file.write_bytes(changed)
        try:
            list(open_folder(folder, quantize="8").tensors)
        except DraftproofError:
            refused += 1
    assert 1000 < refused < 2000


def test_the_end_tokens_of_generation_config_hold(folder: Path) -> None:
    """Instruction-tuned models name more of them there than in config.json."""
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert open_folder(folder).eos == {7, 9}
    path.write_text(json.dumps({"eos_token_id": 5}))
    assert open_folder(folder).eos == {5}
    path.write_text(json.dumps({"temperature": 0.6}))
    assert open_folder(folder).eos == {tiny_models.SIZES["eos_token_id"]}
    for damaged in ('{"eos_token_id": ["7"]}', "[", "[]"):
        path.write_text(damaged)
        with pytest.raises(ModelCorrupt, match="generation_config"):
            open_folder(folder)
