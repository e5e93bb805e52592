"""Loading from disk: folders, GGUF files, and everything that can be wrong with them."""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import psutil
import pytest
import tiny_models
import torch
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from transformers.utils import logging

from draftproof.backends import (
    load_model,
    load_model_and_tokenizer,
    load_tokenizer,
    tokenizer_beside,
)
from draftproof.backends.gguf_files import read_once
from draftproof.backends.weights import read_gguf, read_safetensors
from draftproof.errors import (
    DraftproofError,
    InvalidSetting,
    MissingExtra,
    ModelCorrupt,
    ModelNotFound,
    OutOfMemory,
    UnsupportedModel,
)
from draftproof.ports import Model

TOKENS = (3, 4, 5, 6)


def score(model: Any) -> np.ndarray:
    logits: np.ndarray = model.open(TOKENS).score(TOKENS, 4)
    return logits


def saved(folder: Path, model: Any, **settings: Any) -> Path:
    model.save_pretrained(folder, **settings)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved tiny model with its tokenizer."""
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_models.tokenizer().save_pretrained(path)
    return saved(path, tiny_models.llama(vocab_size=300))


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Qwen2 model, in float32, with a byte vocabulary."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    loaded = tiny_models.qwen2()
    config = loaded.config
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    letters = sorted(t for t in tiny_models.tokenizer().get_vocab() if len(t) == 1)
    writer.add_token_list([*letters[: config.vocab_size - 2], "bc", "ab"])
    writer.add_token_merges(["a b", "b c"])
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, tensor in loaded.named_parameters():
        mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(mapped, tensor.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_folder(folder: Path) -> None:
    model = load_model(folder, device="cpu")
    assert isinstance(model, Model)
    assert model.name == "tiny-llama"
    np.testing.assert_array_equal(score(model), score(wrap(tiny_models.llama(vocab_size=300))))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"


def test_kinds_follow_from_the_configuration(tmp_path: Path) -> None:
    t5 = load_model(saved(tmp_path / "t5", tiny_models.t5()), device="cpu")
    assert t5.open((3, 4)).prefix == (0,)
    whisper = load_model(saved(tmp_path / "whisper", tiny_models.whisper()), device="cpu")
    assert whisper.open(np.zeros(tiny_models.WHISPER_SHAPE, np.float32)).prefix == (3,)


def test_the_stored_dtype_is_the_default(folder: Path, tmp_path: Path) -> None:
    half = saved(tmp_path / "half", tiny_models.llama().to(torch.bfloat16))
    assert dtype(load_model(half, device="cpu")) == torch.bfloat16
    assert dtype(load_model(half, device="cpu", dtype="float32")) == torch.float32
    assert dtype(load_model(folder, device="cpu")) == torch.float32
    assert dtype(load_model(folder, device="cpu", dtype="float16")) == torch.float16


def test_shards(tmp_path: Path) -> None:
    path = saved(tmp_path / "shards", tiny_models.llama(), max_shard_size="40KB")
    shards = sorted(path.glob("model-*.safetensors"))
    assert len(shards) > 1
    np.testing.assert_array_equal(
        score(load_model(path, device="cpu")), score(wrap(tiny_models.llama()))
    )
    shards[1].unlink()
    refused(ModelCorrupt, path, "is not there")


def test_a_gguf_file(gguf_file: Path) -> None:
    model = load_model(gguf_file, device="cpu", dtype="float32")
    np.testing.assert_allclose(score(model), score(wrap(tiny_models.qwen2())), atol=1e-6)
    assert model.name == "tiny"
    assert model.eos == {2}
    fast = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    expected = torch.bfloat16 if fast else torch.float32
    assert dtype(load_model(gguf_file, device="cpu")) == expected
    tokenizer = load_tokenizer(gguf_file)
    assert tokenizer.vocabulary["ab"] == tiny_models.VOCAB - 1
    assert tokenizer.decode(tokenizer.encode("cab")) == "cab"


def test_a_gguf_file_is_parsed_once(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"GGUFReader": 0, "get_tensor_name_map": 0}
    names = gguf.get_tensor_name_map

    class Reader(gguf.GGUFReader):  # type: ignore[misc]  # gguf is untyped
        def __init__(self, *given: Any) -> None:
            calls["GGUFReader"] += 1
            super().__init__(*given)

    def get_tensor_name_map(*given: Any) -> Any:
        calls["get_tensor_name_map"] += 1
        return names(*given)

    monkeypatch.setattr(gguf, "GGUFReader", Reader)
    monkeypatch.setattr(gguf, "get_tensor_name_map", get_tensor_name_map)
    model, tokenizer = load_model_and_tokenizer(gguf_file, device="cpu", dtype="float32")
    assert calls == {"GGUFReader": 1, "get_tensor_name_map": 1}
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == (Reader, get_tensor_name_map)
    apart = load_model(gguf_file, device="cpu", dtype="float32"), load_tokenizer(gguf_file)
    assert calls["GGUFReader"] > 2  # control
    np.testing.assert_array_equal(score(model), score(apart[0]))
    assert tokenizer.vocabulary == apart[1].vocabulary


def test_the_shared_reader_reads_what_the_original_does(gguf_file: Path) -> None:
    plain = gguf.GGUFReader(str(gguf_file))
    with read_once(), read_once():
        shared = gguf.GGUFReader(str(gguf_file))
        assert gguf.GGUFReader(str(gguf_file)) is shared
    for ours, theirs in zip(shared.tensors, plain.tensors, strict=True):
        assert (ours.name, ours.tensor_type) == (theirs.name, theirs.tensor_type)
        np.testing.assert_array_equal(ours.data, theirs.data)
    fields = {key: field.contents() for key, field in shared.fields.items()}
    assert fields == {key: field.contents() for key, field in plain.fields.items()}
    assert gguf.GGUFReader(str(gguf_file)) is not shared


def test_what_replaces_the_reader_goes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = gguf.GGUFReader
    monkeypatch.delattr(gguf, "get_tensor_name_map")  # as a later gguf might
    with read_once():
        assert gguf.GGUFReader is not reader
    with pytest.raises(OSError, match="nowhere"), read_once():
        gguf.GGUFReader("nowhere.gguf")
    assert gguf.GGUFReader is reader
    assert not hasattr(gguf, "get_tensor_name_map")


def test_headers(folder: Path, gguf_file: Path) -> None:
    loaded = tiny_models.llama(vocab_size=300)
    weights = read_safetensors(folder)
    assert weights.count == sum(p.numel() for p in loaded.parameters())
    assert weights.stored_bytes == (folder / "model.safetensors").stat().st_size
    weights = read_gguf(gguf_file)
    assert weights.count == sum(p.numel() for p in tiny_models.qwen2().parameters())
    assert weights.architecture == "qwen2"


def test_loading_is_quiet_and_leaves_no_setting(
    folder: Path, gguf_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def state() -> tuple[Any, ...]:
        return (
            logging.get_verbosity(),
            logging.is_progress_bar_enabled(),
            are_progress_bars_disabled(),
            list(warnings.filters),
            torch.get_default_dtype(),
            torch.get_rng_state().tolist(),
        )

    before = state()
    load_model(folder, device="cpu")
    load_tokenizer(folder)
    load_model(gguf_file, device="cpu")
    load_tokenizer(gguf_file)
    load_model_and_tokenizer(gguf_file, device="cpu")
    assert state() == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("keep", [0, 3, 30, 2000, -1])
def test_truncated_gguf_files(gguf_file: Path, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(gguf_file.read_bytes()[:keep])
    refused(ModelCorrupt, path, "cut.gguf")


@pytest.mark.parametrize("keep", [0, 3, 30, -1])
def test_truncated_safetensors(folder: Path, tmp_path: Path, keep: int) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    whole = (folder / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:keep])
    refused(ModelCorrupt, tmp_path, "model.safetensors")


def test_missing_and_misshapen_weights(folder: Path, tmp_path: Path) -> None:
    """More layers, or wider ones, than the weights hold: never filled with random numbers."""
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    config = json.loads((folder / "config.json").read_text())
    for name, value in {"num_hidden_layers": 3, "intermediate_size": 64}.items():
        (tmp_path / "config.json").write_text(json.dumps({**config, name: value}))
        refused(ModelCorrupt, tmp_path, "missing or misshapen: model.layers")


def test_damaged_configuration(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text("{")
    refused(ModelCorrupt, tmp_path, "cannot be read")


def test_damaged_tokenizer(tmp_path: Path) -> None:
    tiny_models.tokenizer().save_pretrained(tmp_path)
    tiny_models.llama().config.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(ModelCorrupt, match="cannot be read"):
        load_tokenizer(tmp_path)


def test_unknown_architectures(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    config = {"model_type": "yonder", "auto_map": {"AutoModelForCausalLM": "evil.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused(UnsupportedModel, tmp_path, "unknown architecture 'yonder'")
    writer = gguf.GGUFWriter(tmp_path / "yonder.gguf", "yonder")
    writer.add_tensor("x", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused(UnsupportedModel, tmp_path / "yonder.gguf", "unknown architecture 'yonder'")


def test_models_that_do_not_generate(tmp_path: Path) -> None:
    import transformers

    config = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    with torch.random.fork_rng(devices=[]):
        saved(tmp_path, transformers.CLIPVisionModel(config))
    refused(UnsupportedModel, tmp_path, "not a model that generates text")


def test_hybrid_models_are_refused_when_they_are_loaded(tmp_path: Path) -> None:
    refused(UnsupportedModel, saved(tmp_path, tiny_models.lfm2()), "cannot be rewound: conv")


def test_what_is_not_there(tmp_path: Path, folder: Path) -> None:
    refused(ModelNotFound, tmp_path / "nowhere", "does not exist")
    refused(ModelNotFound, tmp_path, "holds no config.json")
    refused(ModelNotFound, folder / "model.safetensors", "neither a folder nor a .gguf file")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    refused(ModelNotFound, tmp_path, "holds no model.safetensors")
    with pytest.raises(ModelNotFound, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelNotFound, match="does not exist"):
        load_tokenizer(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int3"}, "no dtype is called 'int3'"),
        ({"device": "abacus"}, "no device is called 'abacus'"),
        ({"device": "cuda:99"}, "device cuda:99 is not there"),
    ],
)
def test_settings(folder: Path, settings: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        load_model(folder, **settings)


def test_memory_is_checked_before_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = psutil.virtual_memory()
    little = real._replace(available=read_safetensors(folder).stored_bytes - 1)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: little)
    with pytest.raises(OutOfMemory, match=r"tiny-llama .* needs"):
        load_model(folder, device="cpu")
    load_model(folder, device="cpu", dtype="float16")


@pytest.mark.parametrize("missing", ["torch", "transformers", "gguf"])
def test_missing_packages(gguf_file: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    real = importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        if name == missing:
            raise ImportError(f"No module named {name!r}")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(MissingExtra, match=f"{missing} cannot be imported") as caught:
        load_model(gguf_file)
    assert caught.value.remedy == "pip install 'draftproof[torch]'"
    for load in (load_tokenizer, load_model_and_tokenizer):
        with pytest.raises(MissingExtra, match=f"{missing} cannot be imported"):
            load(gguf_file)


def test_the_tokenizer_beside_a_model(folder: Path) -> None:
    found = tokenizer_beside(load_model(folder, device="cpu").model)  # type: ignore[attr-defined]
    assert found is not None
    assert found.vocabulary == load_tokenizer(folder).vocabulary
    assert tokenizer_beside(tiny_models.llama()) is None


def refused(kind: type[DraftproofError], path: Path, message: str) -> None:
    with pytest.raises(kind, match=message):
        load_model(path, device="cpu")


def wrap(loaded: Any) -> Any:
    from draftproof.backends import wrap_model

    return wrap_model(loaded)


def dtype(model: Any) -> torch.dtype:
    kind: torch.dtype = model.model.dtype
    return kind
