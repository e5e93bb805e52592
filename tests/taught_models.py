"""A tiny byte-level BPE tokenizer, and tiny models that were taught to say one text.

Random models hardly ever write whole characters of several bytes, so tests about text need models
that know some. Teaching one takes a second or two.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import tiny_models
import torch
import transformers

PROMPT = "the old"
# Characters of 2, 3 and 4 bytes, which the tokenizer splits over as many tokens.
TEXT = " café sold 3 big 🦉 owls, and the naïve 漢字 poet paid ½ of it… so it was."
# What merges are learnt from: plain letters, so that other characters stay split.
CORPUS = [
    "the old cafe sold three big owls and the naive poet paid half of it so it was",
    "other words lend the vocabulary its size: quick brown foxes jump over lazy dogs while seven",
    "wizards brew very strong potions, judge boxing matches and quietly pack five dozen jugs of",
    "liquid; every morning someone counts hundreds of clouds, thousands of leaves, millions of",
    "drops, planets, stars, galaxies, engines, drafts, targets, rounds, verdicts and residuals",
    "under grey bridges nobody whispers, yet beyond their arches children gather bright pebbles",
]
CHAT = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def bpe(vocab_size: int = 320, **settings: Any) -> Any:
    """Trained on `CORPUS`: <pad>, <s> and </s>, every byte, and merges up to `vocab_size`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="<pad>", **settings
    )


def permuted(tokenizer: Any) -> Any:
    """The same strings and the same size, under other ids."""
    from tokenizers import Tokenizer

    described = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = described["model"]["vocab"]
    ordinary = [token for token in vocabulary if vocabulary[token] >= 3]
    shifted = [vocabulary[token] for token in (*ordinary[1:], ordinary[0])]
    described["model"]["vocab"] = {**vocabulary, **dict(zip(ordinary, shifted, strict=True))}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(described)),
        bos_token="<s>", eos_token="</s>", pad_token="<pad>",
    )  # fmt: skip


def taught(seed: int = 0, steps: int = 60, vocab_size: int = 320) -> Any:
    """A tiny Llama that continues `PROMPT` with `TEXT` and </s>; with few steps, not quite."""
    model = tiny_models.llama(seed, vocab_size=vocab_size, initializer_range=0.1)
    tokenizer = bpe()
    ids = torch.tensor([[*tokenizer(PROMPT + TEXT)["input_ids"], tokenizer.eos_token_id]])
    return _teach(model, steps, input_ids=ids, labels=ids)


def taught_t5(source: tuple[int, ...], answer: tuple[int, ...], steps: int = 60) -> Any:
    """A tiny T5 that answers one source: random ones repeat a single token."""
    inputs = {"input_ids": torch.tensor([source]), "labels": torch.tensor([answer])}
    return _teach(tiny_models.t5(tie_word_embeddings=False), steps, **inputs)


def _teach(model: Any, steps: int, **inputs: Any) -> Any:
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        model(**inputs, use_cache=False).loss.backward()
        optimiser.step()
    optimiser.zero_grad()
    return model


def near(model: Any, distance: float, seed: int = 0) -> Any:
    """A copy whose weights are off by `distance`, as a share of each tensor's own spread."""
    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in twin.parameters():
            spread = weights.std(correction=0) if weights.numel() > 1 else weights.abs()
            noise = torch.randn(weights.shape, generator=generator)
            weights.add_(noise * spread, alpha=distance)
    return twin
