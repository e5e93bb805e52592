"""What Hugging Face's config.json and tensor names are called in a GGUF file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftproof.core import Float32
from draftproof.errors import ModelCorrupt, UnsupportedModel

# GGUF's architecture by `model_type`; Mistral's is Llama's with a window.
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
}
PLAIN_KEYS = {
    "max_position_embeddings": "context_length",
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_PARTS = {
    **PARTS,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


def gguf_name(name: str, architecture: str) -> str | None:
    """A tensor's name in a GGUF file; None for one that no such file has.

    Args:
        name: In the safetensors.
        architecture: GGUF's name of it.
    """
    match = IN_LAYER.fullmatch(name)
    if match is None:
        return WHOLE.get(name)
    part = (GEMMA_PARTS if architecture == "gemma3" else PARTS).get(match[2])
    return None if part is None else f"blk.{match[1]}.{part}.{match[3]}"


def is_norm(name: str) -> bool:
    """Whether a tensor, by its GGUF name, is the weight of a normalisation."""
    return name.endswith("norm.weight")


@dataclass(frozen=True, slots=True)
class HubConfig:
    """A config.json as GGUF metadata.

    Args:
        metadata: By GGUF's keys, and `draftproof.rope.halves`: rows of queries and keys are in
            Hugging Face's order, where a pair that turns together lies half a head apart.
        tied: The output's weights are the embedding's.
        vocab_size: Rows of the embedding.
        eos: Token ids that end a sequence.
        rope_factors: What the rotary frequencies are divided by (Llama 3), or None.
    """

    metadata: Mapping[str, Any]
    tied: bool
    vocab_size: int
    eos: frozenset[int]
    rope_factors: Float32[np.ndarray, "pairs"] | None


def read_hub_config(config: Mapping[str, Any], name: str) -> HubConfig:
    """Translate a config.json.

    Args:
        config: What it holds.
        name: What messages call the model.

    Raises:
        UnsupportedModel: The CPU engine does not run such a model.
        ModelCorrupt: A value is missing or of the wrong kind.
    """
    kind = config.get("model_type")
    architecture = ARCHITECTURES.get(str(kind))
    if architecture is None:
        raise UnsupportedModel(
            f"{name} has the model_type {kind!r}",
            why=f"the CPU engine runs folders of {', '.join(ARCHITECTURES)}",
            remedy="run the model with --backend torch, or choose another model",
        )
    try:
        _refuse(config, name, architecture)
        heads = int(config["num_attention_heads"])
        head_dim = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
        values = {PLAIN_KEYS[key]: config[key] for key in PLAIN_KEYS if config.get(key) is not None}
        values["attention.key_length"] = values["attention.value_length"] = head_dim
        if architecture == "gemma3":
            values["attention.scale"] = float(config["query_pre_attn_scalar"]) ** -0.5
        values |= _windows(config, architecture)
        rope, factors = _rope(config, architecture, head_dim, name)
        eos = config.get("eos_token_id")
        ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
        return HubConfig(
            metadata={
                "general.architecture": architecture,
                "draftproof.rope.halves": True,
                **{f"{architecture}.{key}": value for key, value in (values | rope).items()},
            },
            tied=bool(config.get("tie_word_embeddings", architecture == "gemma3")),
            vocab_size=int(config["vocab_size"]),
            eos=frozenset(map(int, ends)),
            rope_factors=factors,
        )
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ModelCorrupt(
            f"the config.json of {name} cannot be used: {type(error).__name__}: {error}",
            why="a value is missing or of the wrong kind, and the model's shape follows from it",
            remedy="fetch the folder again",
        ) from error


def _refuse(config: Mapping[str, Any], name: str, architecture: str) -> None:
    """Refuse what changes the computation and is not implemented."""
    activation = config.get("hidden_activation") or config.get("hidden_act")
    expected = "gelu_pytorch_tanh" if architecture == "gemma3" else "silu"
    faults = {
        f"hidden_act is {activation!r}": activation not in (None, expected),
        "its weights are quantised": config.get("quantization_config") is not None,
        "it attends in both directions": bool(config.get("use_bidirectional_attention")),
    }
    for fault, there in faults.items():
        if there:
            raise UnsupportedModel(
                f"{name} cannot be run: {fault}",
                why=f"the CPU engine runs {architecture} with {expected}, causal attention and "
                "weights in F32, F16 or BF16",
                remedy="run the model with --backend torch, or choose another model",
            )


def _windows(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """Which layers attend to a window, and how wide it is."""
    window = config.get("sliding_window")
    slides = config.get("use_sliding_window", False) if "qwen" in architecture else True
    if not window or not slides:
        return {}
    values = {"attention.sliding_window": int(window)}
    layers = config.get("layer_types")
    if layers is None and "qwen" in architecture:
        first = int(config["max_window_layers"])
        pattern: Any = [index >= first for index in range(int(config["num_hidden_layers"]))]
    elif layers is None:
        pattern = config.get("sliding_window_pattern", config.get("_sliding_window_pattern"))
    else:
        pattern = [kind == "sliding_attention" for kind in layers]
    return values if pattern is None else values | {"attention.sliding_window_pattern": pattern}


def _rope(
    config: Mapping[str, Any], architecture: str, head_dim: int, name: str
) -> tuple[dict[str, Any], Float32[np.ndarray, "pairs"] | None]:
    """The rotary embedding's keys, and Llama 3's factors.

    transformers 5 writes `rope_parameters`, for gemma3 one for each kind of layer; earlier versions
    `rope_theta`, `rope_local_base_freq` and `rope_scaling`.
    """
    written = config.get("rope_parameters") or {}
    local = written.get("sliding_attention") or {}
    rope = {
        **(config.get("rope_scaling") or {}),
        **written.get("full_attention", written),
    }
    default = 1e6 if architecture == "gemma3" else 1e4
    base = float(rope.get("rope_theta") or config.get("rope_theta") or default)
    part = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    rotary = int(head_dim * float(part))
    values: dict[str, Any] = {"rope.freq_base": base, "rope.dimension_count": rotary}
    if architecture == "gemma3":
        slow = local.get("rope_theta") or config.get("rope_local_base_freq") or 1e4
        values["rope.freq_base_swa"] = float(slow)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    context = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
    if local.get("rope_type", "default") == "default":
        if kind == "default":
            return values, None
        if kind == "llama3":
            return values, _llama3(rope, base, rotary, int(context))
        values |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
        if kind == "linear":
            return values, None
        if kind == "yarn" and rope.get("truncate", True):
            return values | _yarn(rope, int(context)), None
    raise UnsupportedModel(
        f"{name} scales its rotary embedding by {kind!r}",
        why="the CPU engine knows linear, yarn and llama3, on the layers that attend to everything",
        remedy="run the model with --backend torch",
    )


def _yarn(rope: Mapping[str, Any], context: int) -> dict[str, Any]:
    factor = float(rope["factor"])

    def growth(scale: float) -> float:
        """YaRN's factor of the attention; GGUF states it as a multiple of the one for scale 1."""
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    attention = rope.get("attention_factor")
    if attention is None and rope.get("mscale") and rope.get("mscale_all_dim"):
        attention = growth(float(rope["mscale"])) / growth(float(rope["mscale_all_dim"]))
    if attention is None:
        attention = growth(1.0)
    return {
        "rope.scaling.original_context_length": context,
        "rope.scaling.attn_factor": float(attention) / growth(1.0),
        "rope.scaling.yarn_beta_fast": float(rope.get("beta_fast") or 32.0),
        "rope.scaling.yarn_beta_slow": float(rope.get("beta_slow") or 1.0),
    }


def _llama3(
    rope: Mapping[str, Any], base: float, rotary: int, context: int
) -> Float32[np.ndarray, "pairs"]:
    """Slow pairs are divided by the factor, fast ones are kept, those between are blended."""
    factor, low, high = (
        float(rope[key]) for key in ("factor", "low_freq_factor", "high_freq_factor")
    )
    turns = context * base ** (-np.arange(0, rotary, 2) / rotary) / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / (kept + (1 - kept) / factor)).astype(np.float32)
