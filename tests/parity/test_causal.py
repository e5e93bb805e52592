"""Decoder-only models: passes over the rewindable cache against one pass without any cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny_models
import torch

from draftproof.backends.causal import CausalModel
from draftproof.errors import EmptyPrompt, InvalidInput, OutOfMemory, PromptTooLong

LENGTH = 5 * tiny_models.WINDOW
TOKENS = tuple(int(t) for t in np.random.default_rng(0).integers(3, 90, LENGTH))
CASES = [
    pytest.param(make, attention, id=f"{name}-{attention}")
    for name, make in tiny_models.CAUSAL.items()
    for attention in ("eager", "sdpa")
    if (name, attention) not in {("gemma2", "sdpa"), ("bloom", "sdpa")}  # they have none
]


def full_pass(model: Any, tokens: tuple[int, ...]) -> np.ndarray:
    with torch.no_grad():
        ids = torch.tensor([tokens], device=model.device)
        logits: np.ndarray = model(input_ids=ids, use_cache=False).logits[0].float().cpu().numpy()
    return logits


def close(actual: np.ndarray, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("make", "attention"), CASES)
def test_any_chunking_scores_like_one_pass(make: Any, attention: str) -> None:
    loaded = make(attn_implementation=attention)
    expected = full_pass(loaded, TOKENS)
    session = CausalModel(loaded).open(TOKENS)
    for size in (1, 2, 3, 5, 7, 8, 9, 16, LENGTH):
        session.rewind(0)
        for start in range(0, LENGTH, size):
            chunk = TOKENS[start : start + size]
            close(session.score(chunk, len(chunk)), expected[start : start + size])


@pytest.mark.parametrize(("make", "attention"), CASES)
def test_rewinds_leave_no_trace(make: Any, attention: str) -> None:
    """Wrong drafts of 1 to 8 tokens at every position, within the sliding window and past it."""
    loaded = make(attn_implementation=attention)
    expected = full_pass(loaded, TOKENS)
    session = CausalModel(loaded).open(TOKENS)
    for position in range(LENGTH):
        wrong = tuple((t + 1) % 90 for t in TOKENS[position : position + 1 + position % 8])
        session.score(wrong, keep=len(wrong))
        session.rewind(position)
        assert session.length == position
        close(session.score(TOKENS[position : position + 1], 1), expected[position : position + 1])
    session.rewind(3)  # from past the window's edge back to its inside
    close(session.score(TOKENS[3:], 4), expected[-4:])


@pytest.mark.parametrize("make", [tiny_models.mistral, tiny_models.gemma2, tiny_models.gemma3])
def test_the_window_is_felt(make: Any) -> None:
    """Control: with a window as long as the text the logits past the edge are others."""
    narrow, wide = full_pass(make(), TOKENS), full_pass(make(sliding_window=LENGTH), TOKENS)
    close(narrow[: tiny_models.WINDOW], wide[: tiny_models.WINDOW])
    assert np.abs(narrow[tiny_models.WINDOW :] - wide[tiny_models.WINDOW :]).max() > 0.01


def test_a_forgotten_rewind_is_felt() -> None:
    """Control: a wrong token that stays in the cache moves the logits."""
    loaded = tiny_models.llama()
    session = CausalModel(loaded).open(TOKENS)
    session.score((*TOKENS[:5], 7), 0)
    assert np.abs(session.score(TOKENS[5:6], 1) - full_pass(loaded, TOKENS[:6])[-1:]).max() > 0.01


@pytest.mark.parametrize("make", tiny_models.CAUSAL.values(), ids=tiny_models.CAUSAL)
def test_keep_returns_the_last_rows(make: Any) -> None:
    loaded = make()
    expected = full_pass(loaded, TOKENS[:10])
    model = CausalModel(loaded)
    for keep in range(11):
        logits = model.open(TOKENS).score(TOKENS[:10], keep)
        assert logits.dtype == np.float32
        assert logits.shape == (keep, model.vocab_size)
        close(logits, expected[10 - keep :])


def test_layers_that_share_keys() -> None:
    """Layers without keys of their own stay empty, and that is not taken for a fault."""
    loaded = tiny_models.gemma3n()
    session = CausalModel(loaded).open(TOKENS)
    expected = full_pass(loaded, TOKENS)
    session.score(TOKENS[:20], 0)
    session.score((7, 8, 9), 0)
    session.rewind(20)
    close(session.score(TOKENS[20:], 20), expected[20:], 3e-5)
    assert len(session.cache.rewindable) == 2


def test_the_head_runs_on_kept_rows_only() -> None:
    loaded = tiny_models.llama()
    rows = []
    hook = loaded.lm_head.register_forward_hook(lambda *call: rows.append(call[1][0].shape[1]))
    session = CausalModel(loaded).open(TOKENS)
    for keep in (0, 1, 4):
        session.score(TOKENS[:5], keep)
    hook.remove()
    assert rows == [1, 1, 4]


def test_sessions_share_a_model() -> None:
    loaded = tiny_models.gemma3()
    model = CausalModel(loaded)
    first, second = model.open(TOKENS), model.open(TOKENS[::-1])
    first.score(TOKENS[:9], 0)
    second.score(TOKENS[:-6:-1], 0)
    close(first.score(TOKENS[9:12], 3), full_pass(loaded, TOKENS[:12])[-3:])


def test_padded_vocabulary() -> None:
    """The head may have more rows than the tokenizer has tokens; all of them are returned."""
    model = CausalModel(tiny_models.llama(vocab_size=128))
    assert model.vocab_size == 128
    assert model.open((127, 3)).score((127, 3), 2).shape == (2, 128)


def test_bfloat16_beside_float32() -> None:
    """Each model keeps its own dtype; what comes out is float32, near the float32 model's."""
    exact = tiny_models.llama()
    rounded = tiny_models.llama().to(torch.bfloat16)
    model = CausalModel(rounded)
    session = model.open(TOKENS)
    logits = session.score(TOKENS, LENGTH)
    assert logits.dtype == np.float32
    close(logits, full_pass(rounded, TOKENS), 0.1)  # passes of other shapes round differently
    difference = np.abs(logits - full_pass(exact, TOKENS)).max()
    assert 1e-4 < difference < 0.3
    assert rounded.dtype == torch.bfloat16
    assert model.cache_bytes_per_token * 2 == CausalModel(exact).cache_bytes_per_token


def test_rewinding_copies_nothing_at_4096_tokens() -> None:
    """A rewind, and a pass after it, write where the cache lies; nothing of its size is made."""
    model = CausalModel(tiny_models.llama(max_position_embeddings=8192))
    session = model.open((3,) * 4096)
    session.score((3,) * 4096, 0)
    session.score((4,), 0)  # grows the buffers to twice the size
    before = [layer.addresses for layer in session.cache.rewindable]
    with torch.profiler.profile(profile_memory=True) as profile:
        session.rewind(4000)
    assert sum(abs(event.self_cpu_memory_usage) for event in profile.events()) == 0
    session.score((5,) * 8, 8)
    assert [layer.addresses for layer in session.cache.rewindable] == before
    assert all(len(set(addresses)) == 2 for addresses in before)


def test_growth_keeps_what_is_there() -> None:
    loaded = tiny_models.gpt2()
    tokens = (TOKENS * 4)[:128]  # the first buffer holds 64
    session = CausalModel(loaded).open(tokens)
    for token in tokens[:-1]:
        session.score((token,), 0)
    close(session.score(tokens[-1:], 1), full_pass(loaded, tokens)[-1:])


def test_what_a_model_says_of_itself() -> None:
    loaded = tiny_models.qwen2()  # tied embeddings
    loaded.generation_config.eos_token_id = [2, 5]
    loaded.generation_config.bad_words_ids = [[7], [8, 9], [200]]
    loaded.generation_config.suppress_tokens = [11, -1]
    loaded.generation_config.begin_suppress_tokens = [12]
    model = CausalModel(loaded)
    assert model.name == "Qwen2ForCausalLM"
    assert CausalModel(loaded, "mine").name == "mine"
    assert model.eos == {2, 5}
    assert model.banned == ((7,), (8, 9), (11,))
    assert model.banned_first == {12}
    assert model.context_length == 512
    assert model.cache_bytes_per_token == 2 * 2 * 2 * 8 * 4  # k and v, layers, heads, width, float
    parameters = sum(p.numel() for p in loaded.parameters()) * 4
    assert parameters <= model.weight_bytes <= parameters + 1024  # rotary frequencies


def test_eos_falls_back_to_the_configuration() -> None:
    loaded = tiny_models.llama()
    loaded.generation_config.eos_token_id = None
    assert CausalModel(loaded).eos == {2}


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_context_ends_where_rotary_frequencies_change(kind: str) -> None:
    rope = {"rope_type": kind, "factor": 4.0, "rope_theta": 1e4}
    rope["original_max_position_embeddings"] = 32  # type: ignore[assignment]
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}  # type: ignore[dict-item]
    loaded = tiny_models.llama(max_position_embeddings=128, rope_parameters=rope)
    model = CausalModel(loaded)
    assert model.context_length == 32
    session = model.open(TOKENS[:32])
    session.score(TOKENS[:20], 0)
    close(session.score(TOKENS[20:32], 12), full_pass(loaded, TOKENS[:32])[20:])


def test_prompt_errors_name_the_model() -> None:
    model = CausalModel(tiny_models.gpt2(), "tiny")
    with pytest.raises(EmptyPrompt, match="tiny"):
        model.open(())
    with pytest.raises(PromptTooLong, match="129 tokens do not fit in the context of tiny"):
        model.open((3,) * 129)
    with pytest.raises(InvalidInput, match="tiny was given input features"):
        model.open(np.zeros((2, 3), np.float32))


def test_running_past_the_context() -> None:
    loaded = tiny_models.gpt2()
    session = CausalModel(loaded).open((3,) * 128)
    session.score((3,) * 127, 0)
    with pytest.raises(PromptTooLong, match="129 tokens"):
        session.score((3, 4), 1)
    assert session.length == 127
    close(session.score((3,), 1), full_pass(loaded, (3,) * 128)[-1:])


@pytest.mark.parametrize("token", [-1, tiny_models.VOCAB])
def test_unknown_token_ids(token: int) -> None:
    session = CausalModel(tiny_models.llama()).open((3,))
    with pytest.raises(InvalidInput, match=f"token id {token} is outside"):
        session.score((3, token), 1)
    assert session.length == 0


def test_misuse_is_refused() -> None:
    session = CausalModel(tiny_models.llama()).open((3,))
    session.score((3, 4), 0)
    for call in (
        lambda: session.score((), 0),
        lambda: session.score((3,), 2),
        lambda: session.rewind(3),
        lambda: session.rewind(-1),
    ):
        with pytest.raises(ValueError, match="cannot"):
            call()
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session.score((3,), 1)


def test_a_failed_allocation_has_a_name_and_leaves_the_cache_as_it_was() -> None:
    """The second layer asks for 128 TiB, after the first has written to its cache."""
    loaded = tiny_models.llama()
    session = CausalModel(loaded, "tiny").open(TOKENS)
    session.score(TOKENS[:5], 0)
    hook = loaded.model.layers[1].register_forward_pre_hook(
        lambda *_: torch.empty(2**47, dtype=torch.uint8)
    )
    with pytest.raises(OutOfMemory, match="a pass of tiny over 3 tokens with 5 in its cache"):
        session.score(TOKENS[5:8], 1)
    hook.remove()
    close(session.score(TOKENS[5:6], 1), full_pass(loaded, TOKENS[:6])[-1:])


def test_an_interrupted_pass_leaves_the_cache_as_it_was() -> None:
    loaded = tiny_models.llama()
    session = CausalModel(loaded).open(TOKENS)
    session.score(TOKENS[:5], 0)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    hook = loaded.lm_head.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.score(TOKENS[5:8], 1)
    hook.remove()
    close(session.score(TOKENS[5:6], 1), full_pass(loaded, TOKENS[:6])[-1:])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_models_on_two_devices() -> None:
    loaded = tiny_models.llama()
    expected = full_pass(loaded, TOKENS)
    session = CausalModel(loaded.to("cuda")).open(TOKENS)
    close(session.score(TOKENS, LENGTH), expected, 1e-3)
