"""Random models of the CPU engine with matrices in any number format, made without files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from draftproof import _native as native

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD, LAYERS = 272, 256, 6, 2, 48, 512, 2
# Where a block holds its fp16 scales, and how large they are for weights of about 0.06.
SCALES: Mapping[str, Mapping[int, float]] = {
    "Q4_0": {0: 0.012},
    "Q4_1": {0: 0.012, 2: -0.09},
    "Q5_0": {0: 0.006},
    "Q5_1": {0: 0.006, 2: -0.09},
    "Q8_0": {0: 0.0008},
    "Q4_K": {0: 0.0004, 2: 0.003},
    "Q5_K": {0: 0.0002, 2: 0.003},
    "Q6_K": {208: 0.00004},
}
FORMATS = ("F32", "F16", "BF16", *SCALES)

# What the architectures have beyond what all have.
TRAITS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"interleaved": True},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "gemma3": {"qk_norm": True, "post_norms": True, "gelu": True, "window": 20},
}


def matrix(kind: str, rows: int, cols: int, random: np.random.Generator) -> np.ndarray:
    """A tensor's bytes, row after row."""
    _, block, size = native.TYPES[kind]
    if block == 1:
        values = random.normal(0, 0.06, (rows, cols)).astype(np.float32)
        if kind == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).reshape(-1).view(np.uint8)
        return values.astype(kind.replace("F", "float")).reshape(-1).view(np.uint8)
    raw = random.integers(0, 256, (rows, cols // block, size), dtype=np.uint8)
    for at, typical in SCALES[kind].items():
        scale = (typical * random.uniform(0.5, 1.5, raw.shape[:2])).astype(np.float16)
        raw[:, :, at : at + 2] = scale[..., None].view(np.uint8)
    return raw.reshape(-1)


def build(
    formats: tuple[str, ...],
    architecture: str = "llama",
    *,
    kernels: str | None = None,
    threads: int = 2,
    cache_bytes: int = 1 << 28,
    vocab: int = VOCAB,
    layers: int = LAYERS,
    seed: int = 0,
) -> Any:
    """A finished model whose matrices take the formats in turn.

    With fewer `layers`, the first ones of the model that has them all.
    """
    random = np.random.default_rng(seed)
    traits = dict(TRAITS[architecture])
    window = traits.pop("window", 0)
    flags = {key: False for key in ("interleaved", "gelu", "qkv_bias", "qk_norm", "post_norms")}
    frequencies = (1e4 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)).tolist()
    model = native.Model(
        hidden=HIDDEN,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        feed_forward=FEED_FORWARD,
        vocab=vocab,
        norm_epsilon=1e-6,
        attention_scale=HEAD_DIM**-0.5,
        embedding_scale=1.0,
        ropes=[(frequencies, 1.0)],
        layers=([(window, 0)] + [(0, 0)] * (LAYERS - 1))[:layers],
        threads=threads,
        kernels=kernels,
        cache_bytes=cache_bytes,
        **{**flags, **traits},
    )
    wide, narrow = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    matrices = {
        "attn_q": (wide, HIDDEN),
        "attn_k": (narrow, HIDDEN),
        "attn_v": (narrow, HIDDEN),
        "attn_output": (HIDDEN, wide),
        "ffn_gate": (FEED_FORWARD, HIDDEN),
        "ffn_up": (FEED_FORWARD, HIDDEN),
        "ffn_down": (HIDDEN, FEED_FORWARD),
    }
    vectors = {"attn_norm.weight": HIDDEN, "ffn_norm.weight": HIDDEN}
    if traits.get("qkv_bias"):
        vectors |= {"attn_q.bias": wide, "attn_k.bias": narrow, "attn_v.bias": narrow}
    if traits.get("qk_norm"):
        vectors |= {"attn_q_norm.weight": HEAD_DIM, "attn_k_norm.weight": HEAD_DIM}
    if traits.get("post_norms"):
        vectors |= {"post_attention_norm.weight": HIDDEN, "post_ffw_norm.weight": HIDDEN}
    whole = {"token_embd.weight": (vocab, HIDDEN), "output.weight": (vocab, HIDDEN)}
    whole |= {
        f"blk.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in matrices.items()
    }
    for index, (name, (rows, cols)) in enumerate(whole.items()):
        kind = formats[index % len(formats)]
        if cols % native.TYPES[kind][1]:
            kind = "Q8_0"  # a row of `wide` columns holds no whole block of 256
        used = model.set(name, kind, rows, cols, matrix(kind, rows, cols, random))
        assert used == _within(name, layers)
    norms = {"output_norm.weight": HIDDEN}
    norms |= {f"blk.{i}.{name}": size for i in range(LAYERS) for name, size in vectors.items()}
    for name, size in norms.items():
        values = random.normal(0 if "bias" in name else 1, 0.2, size).astype(np.float32)
        assert model.set(name, "F32", 1, size, values.view(np.uint8)) == _within(name, layers)
    model.finish()
    return model


def _within(name: str, layers: int) -> bool:
    return not name.startswith("blk.") or int(name.split(".")[1]) < layers


def score(model: Any, sequence: Any, tokens: Any, parents: Any = None) -> np.ndarray:
    """All logits of one sequence's pass: a chain, or a tree by its rows' parents."""
    count = len(tokens)
    return np.asarray(
        model.score(
            [sequence],
            np.zeros(count, np.int32),
            np.asarray(tokens, np.int32),
            np.arange(-1, count - 1, dtype=np.int32)
            if parents is None
            else np.asarray(parents, np.int32),
            np.ones(count, bool),
            None if parents is None else np.ones(1, bool),
        )
    )


def one_by_one(model: Any, tokens: Any) -> np.ndarray:
    """The logits after each token, every one a pass of its own: what all else is held against."""
    sequence = model.open()
    return np.concatenate([score(model, sequence, [token]) for token in tokens])
