"""A model's shape, from the metadata of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftproof.core import Float32
from draftproof.errors import ModelCorrupt, UnsupportedModel

# What each architecture's weights and layers have beyond what all have.
TRAITS: Mapping[str, Mapping[str, bool]] = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "gemma3": {"qk_norm": True, "post_norms": True, "gelu": True},
}
ARCHITECTURES = tuple(TRAITS)

# Keys that are not implemented, and the values at which they change nothing.
UNSUPPORTED = {
    "expert_count": 0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "attention.causal": True,
}
LEAST, MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
# More than any model has; what a damaged file claims must not become memory.
MOST_LAYERS = 2**12
MOST_PER_HEAD = 2**14

GEMMA_PATTERN = 6  # every sixth layer attends to everything
GEMMA_LOCAL_BASE = 10000.0
GEMMA_27B_LAYERS = 62  # this size alone scales attention by hidden / heads


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: pair i turns by `frequencies[i]` per position.

    Args:
        frequencies: Of each pair of a head's dimensions that turns.
        scale: Of cosine and sine; YaRN's attention factor.
    """

    frequencies: Float32[np.ndarray, "pairs"]
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class CpuConfig:
    """What the engine must know besides the weights.

    Args:
        architecture: Its GGUF name.
        context_length: Most tokens in a session.
        arguments: The engine's own settings, by name; `draftproof._native.Model` takes them.
    """

    architecture: str
    context_length: int
    arguments: Mapping[str, Any]


class Metadata:
    """Hyperparameters of one architecture, each checked as it is read.

    Args:
        values: The file's metadata.
        name: What messages call the model.

    Raises:
        ModelCorrupt: There is no architecture.
    """

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self._values = values
        self.name = name
        architecture = values.get("general.architecture")
        if not isinstance(architecture, str):
            raise self.corrupt("general.architecture", "is missing")
        self.architecture = architecture

    def corrupt(self, key: str, fault: str) -> ModelCorrupt:
        """The error for a value that cannot be."""
        return ModelCorrupt(
            f"{self.name}: {key} {fault}",
            why="the model's shape follows from it",
            remedy="fetch the file again, or convert the model again",
        )

    def get(self, key: str, default: Any = None) -> Any:
        """The architecture's value of `key`."""
        return self._values.get(f"{self.architecture}.{key}", default)

    def count(self, key: str, default: int | None = None, limit: int = 2**31) -> int:
        """A positive whole number below `limit`.

        Raises:
            ModelCorrupt: It is missing, or something else.
            UnsupportedModel: It differs between layers.
        """
        value = self.get(key, default)
        whole = _whole_numbers(value)
        if len(whole) == 1:
            value = whole.pop()
        elif whole:
            raise UnsupportedModel(
                f"{self.name}: {key} differs between layers",
                why="the CPU engine's layers are all alike",
                remedy="run the model with --backend torch",
            )
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise self.corrupt(key, f"is {'missing' if value is None else repr(value)}")
        if not 0 < value < limit:
            raise self.corrupt(key, f"is {value}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number that a float32 can hold.

        Raises:
            ModelCorrupt: It is missing, or something else.
        """
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise self.corrupt(key, f"is {'missing' if value is None else repr(value)}")
        if not LEAST <= value <= MOST:
            raise self.corrupt(key, f"is {value}")
        return float(value)

    def number_if_set(self, key: str) -> float | None:
        """A number as above; None where there is none, or it is 0, which stands for that.

        Raises:
            ModelCorrupt: It is something else.
        """
        value = self.get(key)
        return None if value is None or _is_equal(value, 0) else self.number(key)


def _whole_numbers(values: Any) -> set[int]:
    """The different numbers in an array of whole numbers; empty for anything else."""
    if not isinstance(values, (np.ndarray, list, tuple)):
        return set()
    wrong = any(isinstance(v, bool) or not isinstance(v, (int, np.integer)) for v in values)
    return set() if wrong else {int(v) for v in values}


def _is_equal(value: Any, number: float) -> bool:
    return isinstance(value, (int, float)) and value == number


def require_architecture(values: Mapping[str, Any], name: str) -> Metadata:
    """The metadata of a model that the engine runs.

    Raises:
        UnsupportedModel: It does not run that architecture, or something it needs.
        ModelCorrupt: A value is missing or cannot be.
    """
    metadata = Metadata(values, name)
    if metadata.architecture not in TRAITS:
        raise UnsupportedModel(
            f"{name} has the architecture {metadata.architecture!r}",
            why=f"the CPU engine runs {', '.join(ARCHITECTURES)}",
            remedy="run the model with --backend torch, or choose another model",
        )
    for key, harmless in UNSUPPORTED.items():
        value = metadata.get(key, harmless)
        if not _is_equal(value, harmless):
            raise UnsupportedModel(
                f"{name} has {metadata.architecture}.{key} = {value}",
                why="the CPU engine does not implement it, and the model would be another without",
                remedy="run the model with --backend torch, or choose another model",
            )
    return metadata


def read_config(
    values: Mapping[str, Any],
    vocab_size: int,
    name: str,
    rope_factors: Float32[np.ndarray, "pairs"] | None = None,
) -> CpuConfig:
    """The engine's configuration of a model.

    Args:
        values: Metadata as in a GGUF file. `draftproof.rope.halves` says of a llama model that its
            weights rotate halves of a head, as transformers' do, and not neighbouring pairs.
        vocab_size: Rows of the embedding.
        name: What messages call the model.
        rope_factors: The tensor `rope_freqs.weight`, by which frequencies are divided (Llama 3).

    Raises:
        UnsupportedModel: The engine does not run it.
        ModelCorrupt: A value is missing or cannot be.
    """
    metadata = require_architecture(values, name)
    hidden, heads = metadata.count("embedding_length"), metadata.count("attention.head_count")
    kv_heads = metadata.count("attention.head_count_kv", heads)
    head_dim = metadata.count("attention.key_length", hidden // heads or None, MOST_PER_HEAD)
    if metadata.count("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(
            f"{name} has keys and values of different sizes",
            why="the CPU engine keeps them in equal pages",
            remedy="run the model with --backend torch",
        )
    if heads % kv_heads:
        raise metadata.corrupt("attention.head_count_kv", f"does not divide {heads}")
    rotary = metadata.count("rope.dimension_count", head_dim)
    if rotary > head_dim or rotary % 2:
        raise metadata.corrupt("rope.dimension_count", f"is {rotary}, of a head's {head_dim}")
    if rope_factors is not None and rope_factors.shape != (rotary // 2,):
        raise metadata.corrupt("rope_freqs.weight", f"has {rope_factors.size} factors")
    layers = metadata.count("block_count", limit=MOST_LAYERS)
    windows = _windows(metadata, layers)
    gemma = metadata.architecture == "gemma3"
    ropes = [_rope(metadata, rotary, metadata.number("rope.freq_base", 10000.0), rope_factors)]
    if gemma:
        local = metadata.number("rope.freq_base_swa", GEMMA_LOCAL_BASE)
        ropes.append(Rope(_frequencies(rotary, local)))
    width = hidden // heads if gemma and layers == GEMMA_27B_LAYERS else head_dim
    scale = metadata.number_if_set("attention.scale") or 1 / math.sqrt(width)
    traits = TRAITS[metadata.architecture]
    return CpuConfig(
        architecture=metadata.architecture,
        context_length=metadata.count("context_length"),
        arguments={
            "hidden": hidden,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "feed_forward": metadata.count("feed_forward_length"),
            "vocab": vocab_size,
            "norm_epsilon": metadata.number("attention.layer_norm_rms_epsilon"),
            "attention_scale": scale,
            "embedding_scale": math.sqrt(hidden) if gemma else 1.0,
            "interleaved": metadata.architecture == "llama"
            and not values.get("draftproof.rope.halves", False),
            "gelu": traits.get("gelu", False),
            "qkv_bias": traits.get("qkv_bias", False),
            "qk_norm": traits.get("qk_norm", False),
            "post_norms": traits.get("post_norms", False),
            "ropes": [(rope.frequencies.tolist(), rope.scale) for rope in ropes],
            "layers": [(window, int(gemma and window > 0)) for window in windows],
        },
    )


def _windows(metadata: Metadata, layers: int) -> Sequence[int]:
    """How many positions each layer attends to, its own included; 0 for all."""
    if metadata.number_if_set("attention.sliding_window") is None:
        return [0] * layers
    window = metadata.count("attention.sliding_window")
    default = GEMMA_PATTERN if metadata.architecture == "gemma3" else None
    pattern = metadata.get("attention.sliding_window_pattern", default)
    if pattern is None:
        return [window] * layers
    if isinstance(pattern, (int, np.integer)):
        if pattern < 1:
            raise metadata.corrupt("attention.sliding_window_pattern", f"is {pattern}")
        return [0 if (i + 1) % pattern == 0 else window for i in range(layers)]
    if not isinstance(pattern, (np.ndarray, list, tuple)):
        raise metadata.corrupt("attention.sliding_window_pattern", f"is {pattern!r}")
    if len(pattern) != layers:
        raise metadata.corrupt("attention.sliding_window_pattern", f"names {len(pattern)} layers")
    return [window if windowed else 0 for windowed in pattern]


def _frequencies(rotary: int, base: float) -> Float32[np.ndarray, "pairs"]:
    exponents = np.arange(0, rotary, 2, dtype=np.float32) / np.float32(rotary)
    return (1.0 / np.float32(base) ** exponents).astype(np.float32)


def _rope(
    metadata: Metadata, rotary: int, base: float, factors: Float32[np.ndarray, "pairs"] | None
) -> Rope:
    """The scaling that the file asks for.

    Raises:
        UnsupportedModel: It is of another kind.
    """
    plain = _frequencies(rotary, base)
    kind = metadata.get("rope.scaling.type", "none")
    if not isinstance(kind, str):
        raise metadata.corrupt("rope.scaling.type", f"is {kind!r}")
    factor = (
        metadata.number_if_set("rope.scaling.factor")
        or metadata.number_if_set("rope.scale_linear")
        or 1.0
    )
    if kind == "none" and metadata.get("rope.scale_linear") is None:
        return Rope(plain if factors is None else (plain / factors).astype(np.float32))
    if kind in ("linear", "none"):
        return Rope((plain / np.float32(factor)).astype(np.float32))
    if kind == "yarn":
        return _yarn(metadata, plain, rotary, base, factor)
    raise UnsupportedModel(
        f"{metadata.name} scales its rotary embedding by {kind!r}",
        why="the CPU engine knows none, linear, yarn and Llama 3's factors",
        remedy="run the model with --backend torch",
    )


def _yarn(
    metadata: Metadata,
    plain: Float32[np.ndarray, "pairs"],
    rotary: int,
    base: float,
    factor: float,
) -> Rope:
    """YaRN (Peng et al., 2023, section 3.2): slow pairs are interpolated, fast ones are not."""
    original = metadata.count("rope.scaling.original_context_length")
    if base <= 1:
        raise metadata.corrupt("rope.freq_base", f"is {base}, and no pair is slower than another")

    def pair_that_turns(times: float) -> float:
        """The pair that makes so many turns within the original context."""
        return rotary * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(metadata.number("rope.scaling.yarn_beta_fast", 32.0))), 0)
    high = min(
        math.ceil(pair_that_turns(metadata.number("rope.scaling.yarn_beta_slow", 1.0))), rotary - 1
    )
    ramp = np.clip((np.arange(rotary // 2) - low) / max(high - low, 1e-3), 0, 1).astype(np.float32)
    frequencies = plain / np.float32(factor) * ramp + plain * (1 - ramp)
    attention = metadata.number_if_set("rope.scaling.attn_factor") or 1.0
    scale = attention * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
    return Rope(frequencies.astype(np.float32), scale)
