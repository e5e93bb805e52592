"""Tiny random transformers models: 2 layers, width 32, float32, evaluation mode.

Every factory makes the same weights for the same seed and leaves torch's global generator alone.
Weights are drawn wide (`initializer_range`), so that logits differ by more than rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

VOCAB = 96
WINDOW = 8
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _made(kind: Any, config: Any, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(config).eval()


def llama(seed: int = 0, **settings: Any) -> Any:
    config = transformers.LlamaConfig(**{**SIZES, **settings})
    return _made(transformers.LlamaForCausalLM, config, seed)


def qwen2(seed: int = 0, **settings: Any) -> Any:
    config = transformers.Qwen2Config(**{**SIZES, "tie_word_embeddings": True, **settings})
    return _made(transformers.Qwen2ForCausalLM, config, seed)


def qwen3(seed: int = 0, **settings: Any) -> Any:
    """Queries and keys are normalised."""
    sizes = {**SIZES, "head_dim": 16, "tie_word_embeddings": True, **settings}
    return _made(transformers.Qwen3ForCausalLM, transformers.Qwen3Config(**sizes), seed)


def mistral(seed: int = 0, **settings: Any) -> Any:
    """Every layer slides."""
    config = transformers.MistralConfig(**{**SIZES, "sliding_window": WINDOW, **settings})
    return _made(transformers.MistralForCausalLM, config, seed)


def gemma2(seed: int = 0, **settings: Any) -> Any:
    """Sliding and full layers in turn, logits soft-capped."""
    config = transformers.Gemma2Config(
        **{**SIZES, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": WINDOW, **settings}
    )
    return _made(transformers.Gemma2ForCausalLM, config, seed)


def gemma3(seed: int = 0, **settings: Any) -> Any:
    """Sliding and full layers, each kind with rotary frequencies of its own."""
    config = transformers.Gemma3TextConfig(
        **{
            **SIZES,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
            **settings,
        }
    )
    return _made(transformers.Gemma3ForCausalLM, config, seed)


def gpt2(seed: int = 0, **settings: Any) -> Any:
    """Learned positions."""
    config = transformers.GPT2Config(
        **{
            "vocab_size": VOCAB,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 128,
            "initializer_range": 0.2,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **settings,
        }
    )
    return _made(transformers.GPT2LMHeadModel, config, seed)


def bloom(seed: int = 0, **settings: Any) -> Any:
    """Positions as a bias on the attention (ALiBi)."""
    config = transformers.BloomConfig(
        **{
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "initializer_range": 0.2,
            **settings,
        }
    )
    return _made(transformers.BloomForCausalLM, config, seed)


def gpt_neox(seed: int = 0, **settings: Any) -> Any:
    """Attention and feed-forward side by side; its configuration says it is no decoder."""
    sizes = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}
    config = transformers.GPTNeoXConfig(**{**sizes, **settings})
    return _made(transformers.GPTNeoXForCausalLM, config, seed)


def gemma3n(seed: int = 0) -> Any:
    """The last two layers read the keys of the layers before them."""
    config = transformers.Gemma3nTextConfig(
        **{**SIZES, "num_hidden_layers": 4},
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB,
        laurel_rank=4,
        altup_num_inputs=2,
        activation_sparsity_pattern=None,
    )
    return _made(transformers.Gemma3nForCausalLM, config, seed)


def mamba(seed: int = 0) -> Any:
    """Recurrent."""
    config = transformers.MambaConfig(
        vocab_size=VOCAB, hidden_size=32, state_size=4, num_hidden_layers=2
    )
    return _made(transformers.MambaForCausalLM, config, seed)


def lfm2(seed: int = 0) -> Any:
    """Hybrid: a convolution and an attention layer."""
    config = transformers.Lfm2Config(**SIZES, layer_types=["conv", "full_attention"])
    return _made(transformers.Lfm2ForCausalLM, config, seed)


def jamba(seed: int = 0) -> Any:
    """Hybrid: a recurrent and an attention layer."""
    config = transformers.JambaConfig(
        **SIZES,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=1,
        expert_layer_period=2,
        mamba_d_state=4,
        mamba_dt_rank=2,
    )
    return _made(transformers.JambaForCausalLM, config, seed)


def bert(seed: int = 0, decoder: bool = False) -> Any:
    """With `decoder` a decoder-only model; without, an encoder with a language-model head."""
    sizes = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}
    config = transformers.BertConfig(**sizes, is_decoder=decoder)
    return _made(transformers.BertLMHeadModel, config, seed)


SEQ2SEQ_SIZES = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "init_std": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def t5(seed: int = 0, **settings: Any) -> Any:
    config = transformers.T5Config(
        **{
            "vocab_size": VOCAB,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "initializer_factor": 1.0,
            "decoder_start_token_id": 0,
            "eos_token_id": 1,
            **settings,
        }
    )
    return _made(transformers.T5ForConditionalGeneration, config, seed)


def bart(seed: int = 0, **settings: Any) -> Any:
    config = transformers.BartConfig(
        **{
            **SEQ2SEQ_SIZES,
            "max_position_embeddings": 64,
            "decoder_start_token_id": 2,
            **settings,
        }
    )
    model = _made(transformers.BartForConditionalGeneration, config, seed)
    model.generation_config.forced_bos_token_id = 1
    return model


def marian(seed: int = 0, **settings: Any) -> Any:
    config = transformers.MarianConfig(
        **{
            **SEQ2SEQ_SIZES,
            "max_position_embeddings": 64,
            "decoder_start_token_id": 0,
            "decoder_vocab_size": VOCAB,
            **settings,
        }
    )
    model = _made(transformers.MarianMTModel, config, seed)
    model.generation_config.bad_words_ids = [[0], [5, 6]]
    return model


WHISPER_SHAPE = (8, 60)


def whisper(seed: int = 0, **settings: Any) -> Any:
    config = transformers.WhisperConfig(
        **{
            **SEQ2SEQ_SIZES,
            "num_mel_bins": WHISPER_SHAPE[0],
            "max_source_positions": WHISPER_SHAPE[1] // 2,
            "max_target_positions": 64,
            "decoder_start_token_id": 3,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
            **settings,
        }
    )
    model = _made(transformers.WhisperForConditionalGeneration, config, seed)
    model.generation_config.suppress_tokens = [7, 9]
    model.generation_config.begin_suppress_tokens = [11, 2]
    return model


CAUSAL: dict[str, Callable[..., Any]] = {
    "llama": llama,
    "qwen2": qwen2,
    "mistral": mistral,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "gpt2": gpt2,
    "bloom": bloom,
    "gpt_neox": gpt_neox,
}
SEQ2SEQ: dict[str, Callable[..., Any]] = {
    "t5": t5,
    "bart": bart,
    "marian": marian,
    "whisper": whisper,
}


def tokenizer(**settings: Any) -> Any:
    """Bytes as tokens, after <pad>, <s> and </s>; text begins with <s>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    special = ["<pad>", "<s>", "</s>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*special, *letters])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="<pad>", **settings
    )
