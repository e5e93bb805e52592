"""Tiny random models in GGUF files, written value by value so that each can be changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_bytes import array, build, entry, number, pair, text

KINDS = gguf.GGUFValueType
CODES = {
    KINDS.UINT32: "I",
    KINDS.INT32: "i",
    KINDS.UINT64: "Q",
    KINDS.FLOAT32: "f",
    KINDS.FLOAT64: "d",
    KINDS.BOOL: "?",
}
TYPES = {
    np.float32: gguf.GGMLQuantizationType.F32,
    np.float16: gguf.GGMLQuantizationType.F16,
    np.int32: gguf.GGMLQuantizationType.I32,
}
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD, LAYERS = 32, 4, 2, 8, 64, 2
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")


@dataclass(frozen=True)
class Typed:
    """A metadata value and how it is stored; `inner` is the type of an array's elements."""

    kind: gguf.GGUFValueType
    value: Any
    inner: gguf.GGUFValueType | None = None


def count(value: int) -> Typed:
    return Typed(KINDS.UINT32, value)


def real(value: float) -> Typed:
    return Typed(KINDS.FLOAT32, value)


def string(value: str) -> Typed:
    return Typed(KINDS.STRING, value)


def strings(*values: str) -> Typed:
    return Typed(KINDS.ARRAY, list(values), KINDS.STRING)


def integers(*values: int) -> Typed:
    return Typed(KINDS.ARRAY, list(values), KINDS.INT32)


def metadata_of(architecture: str) -> dict[str, Typed]:
    """Hyperparameters and a tokenizer, most optional keys included."""
    own = {
        "context_length": count(64),
        "embedding_length": count(HIDDEN),
        "block_count": count(LAYERS),
        "feed_forward_length": count(FEED_FORWARD),
        "attention.head_count": count(HEADS),
        "attention.head_count_kv": count(KV_HEADS),
        "attention.key_length": count(HEAD_DIM),
        "attention.value_length": count(HEAD_DIM),
        "attention.layer_norm_rms_epsilon": real(1e-6),
        "rope.dimension_count": count(HEAD_DIM),
        "rope.freq_base": real(10000.0),
    }
    if architecture == "qwen3":
        own |= {
            "rope.scaling.type": string("yarn"),
            "rope.scaling.factor": real(4.0),
            "rope.scaling.original_context_length": count(16),
            "rope.scaling.yarn_beta_fast": real(32.0),
            "rope.scaling.yarn_beta_slow": real(1.0),
            "rope.scaling.attn_factor": real(1.0),
        }
    if architecture == "qwen2":
        own |= {"rope.scaling.type": string("linear"), "rope.scaling.factor": real(2.0)}
    if architecture == "gemma3":
        own |= {
            "attention.sliding_window": count(8),
            "attention.sliding_window_pattern": count(2),
            "rope.freq_base_swa": real(10000.0),
            "attention.scale": real(0.35),
        }
    return {
        "general.architecture": string(architecture),
        "general.name": string("tiny"),
        **{f"{architecture}.{key}": value for key, value in own.items()},
        **_tokenizer("gpt2" if architecture != "gemma3" else "llama"),
    }


def _tokenizer(kind: str) -> dict[str, Typed]:
    if kind == "gpt2":
        # All bytes, as byte-level BPE writes them, and one merge.
        signs = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 324))]
        tokens = ["<|end|>", *signs, "ab"]
        own = {"pre": string("qwen2"), "merges": strings("a b")}
        kinds = [3] + [1] * (len(tokens) - 1)
    else:
        tokens = ["<pad>", "<eos>", "<bos>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a"]
        own = {"scores": Typed(KINDS.ARRAY, [0.0] * len(tokens), KINDS.FLOAT32)}
        kinds = [3, 3, 3] + [6] * 256 + [1, 1]
    return {
        f"tokenizer.ggml.{key}": value
        for key, value in {
            "model": string(kind),
            "tokens": strings(*tokens),
            "token_type": integers(*kinds),
            "bos_token_id": count(0),
            "eos_token_id": count(0),
            "add_bos_token": Typed(KINDS.BOOL, True),
            "add_space_prefix": Typed(KINDS.BOOL, False),
            **own,
        }.items()
    } | {"tokenizer.chat_template": string("{% for m in messages %}{{ m.content }}{% endfor %}")}


def tensors_of(architecture: str) -> dict[str, np.ndarray]:
    """Float32 weights by their names, shaped (rows, columns)."""
    vocab = len(metadata_of(architecture)["tokenizer.ggml.tokens"].value)
    wide, narrow = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (HIDDEN,),
        "attn_q.weight": (wide, HIDDEN),
        "attn_k.weight": (narrow, HIDDEN),
        "attn_v.weight": (narrow, HIDDEN),
        "attn_output.weight": (HIDDEN, wide),
        "ffn_norm.weight": (HIDDEN,),
        "ffn_gate.weight": (FEED_FORWARD, HIDDEN),
        "ffn_up.weight": (FEED_FORWARD, HIDDEN),
        "ffn_down.weight": (HIDDEN, FEED_FORWARD),
    }
    if architecture == "qwen2":
        layer |= {"attn_q.bias": (wide,), "attn_k.bias": (narrow,), "attn_v.bias": (narrow,)}
    if architecture in ("qwen3", "gemma3"):
        layer |= {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
    if architecture == "gemma3":
        layer |= {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
    if architecture == "llama":
        shapes |= {"output.weight": (vocab, HIDDEN), "rope_freqs.weight": (HEAD_DIM // 2,)}
    for index in range(LAYERS):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    random = np.random.default_rng(1)
    return {
        name: random.normal(1.0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()
    }


def _value(typed: Typed) -> bytes:
    if typed.kind == KINDS.STRING:
        return text(typed.value)
    if typed.kind != KINDS.ARRAY:
        return number(CODES[typed.kind], typed.value)
    assert typed.inner is not None
    return array(typed.inner, [_value(Typed(typed.inner, element)) for element in typed.value])


def write_model(
    path: Path,
    metadata: Mapping[str, Typed],
    tensors: Mapping[str, np.ndarray | tuple[np.ndarray, gguf.GGMLQuantizationType]],
) -> Path:
    """A file with these; a tensor of bytes comes with its type."""
    entries, data = [], b""
    for name, tensor in tensors.items():
        values, kind = tensor if isinstance(tensor, tuple) else (tensor, TYPES[tensor.dtype.type])
        block, size = gguf.GGML_QUANT_SIZES[kind]
        columns = values.nbytes // math.prod(values.shape[:-1]) // size * block
        entries.append(entry(name, (columns, *reversed(values.shape[:-1])), kind, len(data)))
        data += values.tobytes() + bytes(-values.nbytes % 32)
    pairs = [pair(key, typed.kind, _value(typed)) for key, typed in metadata.items()]
    path.write_bytes(build(pairs, entries) + data)
    return path
