"""Encoder-decoder models: the decoder's rewindable cache against one pass without any cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny_models
import torch

from draftproof.backends.seq2seq import Seq2SeqModel
from draftproof.core import Prompt
from draftproof.errors import (
    EmptyPrompt,
    InvalidInput,
    InvalidSetting,
    OutOfMemory,
    PromptTooLong,
    UnsupportedModel,
)

RNG = np.random.default_rng(1)
SOURCE = tuple(int(t) for t in RNG.integers(3, 90, 11))
SOUND = RNG.standard_normal(tiny_models.WHISPER_SHAPE).astype(np.float32)
TOKENS = tuple(int(t) for t in RNG.integers(3, 90, 24))
CASES = pytest.mark.parametrize(
    ("make", "prompt"),
    [
        pytest.param(make, SOUND if name == "whisper" else SOURCE, id=name)
        for name, make in tiny_models.SEQ2SEQ.items()
    ],
)


def full_pass(model: Any, prompt: Prompt, tokens: tuple[int, ...]) -> np.ndarray:
    inputs = {model.main_input_name: torch.tensor(np.array(prompt))[None]}
    with torch.no_grad():
        ids = torch.tensor([tokens])
        logits: np.ndarray = model(**inputs, decoder_input_ids=ids, use_cache=False).logits[0]
    return np.asarray(logits)


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@CASES
def test_any_chunking_scores_like_one_pass(make: Any, prompt: Prompt) -> None:
    loaded = make()
    session = Seq2SeqModel(loaded).open(prompt)
    tokens = session.prefix + TOKENS
    expected = full_pass(loaded, prompt, tokens)
    for size in (1, 2, 3, 5, 8, len(tokens)):
        session.rewind(0)
        for start in range(0, len(tokens), size):
            chunk = tokens[start : start + size]
            close(session.score(chunk, len(chunk)), expected[start : start + size])


@CASES
def test_rewinds_leave_no_trace(make: Any, prompt: Prompt) -> None:
    loaded = make()
    session = Seq2SeqModel(loaded).open(prompt)
    tokens = session.prefix + TOKENS
    expected = full_pass(loaded, prompt, tokens)
    for position in range(len(tokens)):
        wrong = tuple((t + 1) % 90 for t in tokens[position : position + 1 + position % 8])
        session.score(wrong, keep=0)
        session.rewind(position)
        close(session.score(tokens[position : position + 1], 1), expected[position : position + 1])


@CASES
def test_the_prompt_is_felt(make: Any, prompt: Prompt) -> None:
    """Control: another prompt gives other logits, so the cross-attention's cache matters."""
    model = Seq2SeqModel(make())
    other = prompt[::-1] if isinstance(prompt, tuple) else np.ascontiguousarray(prompt[:, ::-1])
    first, second = (model.open(p).score(TOKENS, 1) for p in (prompt, other))
    assert np.abs(first - second).max() > 1e-3


@CASES
def test_the_encoder_runs_once_per_session(make: Any, prompt: Prompt) -> None:
    loaded = make()
    calls = []
    hook = loaded.get_encoder().register_forward_hook(lambda *_: calls.append(1))
    model = Seq2SeqModel(loaded)
    for sessions in (1, 2):
        session = model.open(prompt)
        for _ in range(3):
            session.score(TOKENS[:4], 1)
            session.rewind(1)
        session.rewind(0)
        session.score(TOKENS[:2], 2)
        session.close()
        assert len(calls) == sessions
    hook.remove()


def test_prefixes() -> None:
    def prefix(make: Any, **given: Any) -> tuple[int, ...]:
        loaded = make()
        speech = loaded.main_input_name == "input_features"
        opened: tuple[int, ...] = (
            Seq2SeqModel(loaded, **given).open(SOUND if speech else SOURCE).prefix
        )
        return opened

    assert prefix(tiny_models.t5) == (0,)
    assert prefix(tiny_models.bart) == (2, 1)  # start, forced first token
    assert prefix(tiny_models.marian) == (0,)
    assert prefix(tiny_models.whisper) == (3,)
    assert prefix(tiny_models.whisper, prefix=(3, 20, 21)) == (3, 20, 21)


def test_no_first_token() -> None:
    with pytest.raises(InvalidSetting, match="no first token"):
        Seq2SeqModel(tiny_models.t5(), prefix=())


def test_what_models_say_of_themselves() -> None:
    whisper = Seq2SeqModel(tiny_models.whisper())
    assert whisper.banned == ((7,), (9,))
    assert whisper.banned_first == {11, 2}
    assert whisper.context_length == 64
    assert whisper.speech
    assert Seq2SeqModel(tiny_models.marian()).banned == ((0,), (5, 6))
    t5 = Seq2SeqModel(tiny_models.t5())
    assert t5.context_length is None
    assert t5.eos == {1}
    assert not t5.speech
    for model in (whisper, t5):
        assert model.cache_bytes_per_token == 2 * 2 * 4 * 8 * 4  # k, v; layers; heads; width; float
        assert model.vocab_size == tiny_models.VOCAB


def test_prompts_that_an_encoder_cannot_read() -> None:
    t5, bart = Seq2SeqModel(tiny_models.t5(), "tiny"), Seq2SeqModel(tiny_models.bart(), "tiny")
    whisper = Seq2SeqModel(tiny_models.whisper(), "tiny")
    with pytest.raises(EmptyPrompt, match="tiny"):
        t5.open(())
    with pytest.raises(EmptyPrompt, match="tiny"):
        whisper.open(np.zeros((tiny_models.WHISPER_SHAPE[0], 0), np.float32))
    with pytest.raises(PromptTooLong, match="65 tokens do not fit in the encoder of tiny"):
        bart.open((3,) * 65)
    with pytest.raises(InvalidInput, match="input features"):
        t5.open(SOUND)
    with pytest.raises(InvalidInput, match="token ids"):
        whisper.open(SOURCE)
    with pytest.raises(InvalidInput, match="outside the vocabulary"):
        t5.open((3, tiny_models.VOCAB))
    with pytest.raises(InvalidInput, match="shape"):
        whisper.open(SOUND[:, :-1].copy())


def test_running_past_the_decoders_context() -> None:
    session = Seq2SeqModel(tiny_models.bart()).open(SOURCE)
    with pytest.raises(PromptTooLong, match="65 tokens"):
        session.score((3,) * 65, 1)


def test_no_memory_for_the_encoder() -> None:
    loaded = tiny_models.t5()
    loaded.get_encoder().register_forward_pre_hook(lambda *_: torch.empty(2**47, dtype=torch.uint8))
    with pytest.raises(OutOfMemory, match="the encoder of tiny"):
        Seq2SeqModel(loaded, "tiny").open(SOURCE)


def test_decoder_only_models_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="not an encoder-decoder model"):
        Seq2SeqModel(tiny_models.llama())
