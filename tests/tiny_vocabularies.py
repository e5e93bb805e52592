"""Small vocabularies as the metadata of GGUF files, trained on the lines of `texts`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from texts import lines
from tokenizers import models, normalizers, pre_tokenizers, trainers

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SHAPE = {"block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 32}


def _unmarked(seed: int) -> list[str]:
    """Lines to train on, without those in which special tokens can be."""
    return [line for line in lines(1600, seed) if "<" not in line and "[" not in line]


@cache
def _trained(whole: bool) -> tuple[dict[str, int], tuple[tuple[str, str], ...]]:
    """Byte-level tokens and merges; merges go across spaces, digits and line ends.

    With `whole`, some words are tokens that no merge makes.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=12,
    )
    tokenizer.train_from_iterator(_unmarked(seed=1), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    if not whole:
        return model["vocab"], tuple(tuple(merge) for merge in model["merges"])
    parts = {part for merge in model["merges"] for part in merge}
    merges = [
        (left, right)
        for left, right in model["merges"]
        if left + right in parts or not re.fullmatch("Ġ?[A-Za-z]{3,}", left + right)
    ]
    assert len(model["merges"]) - len(merges) > 5
    return model["vocab"], tuple(merges)


def byte_level(pre: str, /, *, whole: bool = True, **changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary, cut by the pre-tokeniser of that name."""
    vocabulary, merges = _trained(whole)
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    tokens = [*words, *CONTROLS, "<think>", "[PAD1]"]
    types = [NORMAL] * len(words) + [CONTROL] * len(CONTROLS) + [USER_DEFINED, 5]
    values = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": len(words),
        "tokenizer.ggml.eos_token_id": len(words) + 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    return _changed(values, changes)


@cache
def _pieces() -> tuple[str, ...]:
    """SentencePiece's tokens, best first, with runs of spaces among them."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=2500, show_progress=False, limit_alphabet=600, max_token_length=10
    )
    tokenizer.train_from_iterator(_unmarked(seed=2), trainer)
    vocabulary = tokenizer.get_vocab()
    learned = sorted(vocabulary, key=vocabulary.__getitem__)
    letters = [token for token in learned if len(token) == 1]
    return tuple([token for token in learned if len(token) > 1] + letters)


def sentencepiece(*, gemma: bool = False, **changes: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary: Llama 2's manner, or Gemma's, without the prefixed space."""
    controls = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    runs = (
        ["\n" * k for k in range(2, 9)] + [" " * k for k in range(2, 9)] if gemma else ["<think>"]
    )
    taken = {*controls, *bytes_, *runs, *(run.replace(" ", "▁") for run in runs)}
    words = [piece for piece in _pieces() if piece not in taken]
    tokens = [*controls, *bytes_, *runs, *words]
    scores = (
        [0.0] * 3 + [0.0] * 256 + [-1000.0] * len(runs) + [-float(k) for k in range(len(words))]
    )
    types = [CONTROL] * 3 + [BYTE] * 256 + [USER_DEFINED] * len(runs) + [NORMAL] * len(words)
    values = {
        "general.architecture": "gemma3" if gemma else "llama",
        "general.name": "tiny",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": not gemma,
    }
    return _changed(values, changes)


def _changed(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """With keys after "tokenizer.ggml." replaced, or removed where None."""
    values |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in values.items() if value is not None}


def write(metadata: Mapping[str, Any], path: Path) -> Path:
    """The metadata as a GGUF file that transformers takes for a small model's."""
    architecture = metadata["general.architecture"]
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in SHAPE.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    for key in ("head_count", "head_count_kv"):
        writer.add_uint32(f"{architecture}.attention.{key}", 2)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_uint32(f"{architecture}.vocab_size", len(metadata["tokenizer.ggml.tokens"]))
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        _put(writer, key, value)
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _put(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        plain: Sequence[Any] = value.tolist() if isinstance(value, np.ndarray) else value
        writer.add_array(key, plain)
