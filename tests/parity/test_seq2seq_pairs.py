"""Pairs of encoder-decoder models through the public API, from prompt to text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import taught_models
import tiny_models
import torch

import draftproof
from draftproof.backends import wrap_model
from draftproof.core import Features
from draftproof.errors import InvalidSetting

SOURCE = (5, 6, 7, 5, 6, 20)
RNG = np.random.default_rng(2)
SOUND = RNG.standard_normal(tiny_models.WHISPER_SHAPE).astype(np.float32)
UNTIED = {"tie_word_embeddings": False}
START, LANGUAGES, TASKS, NO_TIMESTAMPS = 3, range(20, 50), {"translate": 51, "transcribe": 50}, 52


def multilingual(seed: int = 0, **settings: Any) -> Any:
    """A tiny Whisper with a generation configuration like that of the large ones."""
    made = tiny_models.whisper(seed, **UNTIED)
    codes = ["<|en|>", "<|de|>", *(f"<|{i}|>" for i in LANGUAGES[2:])]
    own: dict[str, Any] = {
        "is_multilingual": True,
        "lang_to_id": dict(zip(codes, LANGUAGES, strict=True)),
        "task_to_id": TASKS,
        "no_timestamps_token_id": NO_TIMESTAMPS,
        "return_timestamps": False,
        "decoder_start_token_id": START,
    }
    for name, value in {**own, **settings}.items():
        setattr(made.generation_config, name, value)
    return made


MAKERS: dict[str, Any] = {
    "t5": tiny_models.t5,
    "bart": tiny_models.bart,
    "marian": tiny_models.marian,
    "whisper": tiny_models.whisper,
}


@contextmanager
def counted(*models: Any) -> Iterator[list[int]]:
    """How often each model's encoder runs."""
    calls = [0] * len(models)

    def count(index: int) -> Any:
        def hook(*_: Any) -> None:
            calls[index] += 1

        return hook

    with ExitStack() as stack:
        for index, model in enumerate(models):
            handle = model.get_encoder().register_forward_hook(count(index))
            stack.callback(handle.remove)
        yield calls


@pytest.mark.parametrize("name", [*MAKERS, "multilingual"])
def test_greedy_pairs_equal_plain_and_encode_once(name: str) -> None:
    target = multilingual() if name == "multilingual" else MAKERS[name](**UNTIED)
    near = taught_models.near(target, 0.05)
    prompt = SOUND if target.main_input_name == "input_features" else SOURCE
    processor = SimpleNamespace(tokenizer=tiny_models.tokenizer())
    plain = draftproof.from_transformers(target, None, processor)
    expected = plain.generate(prompt, max_tokens=30, eos=[])
    accepted = 0
    for length in range(1, 9):
        pair = draftproof.from_transformers(target, near, processor, draft_length=length)
        with counted(target, near) as calls:
            result = pair.generate(prompt, max_tokens=30, eos=[])
        assert result.token_ids == expected.token_ids
        assert result.text == expected.text
        assert calls == [1, 1]
        accepted += result.stats.accepted
    assert accepted > 0


def test_control_another_draft_is_rejected() -> None:
    """Equality above is the rule's work: this draft is mostly wrong, and the output the same."""
    target, other = multilingual(), multilingual(9)
    expected = draftproof.from_transformers(target).generate(SOUND, max_tokens=30, eos=[])
    pair = draftproof.from_transformers(target, other, draft_length=4)
    result = pair.generate(SOUND, max_tokens=30, eos=[])
    assert result.token_ids == expected.token_ids
    assert result.stats.accepted < result.stats.drafted / 2


def test_several_sounds_at_once() -> None:
    spec = draftproof.from_transformers(multilingual())
    batch = np.stack([SOUND, SOUND[:, ::-1]])
    solo = [spec.generate(np.ascontiguousarray(sound), max_tokens=8) for sound in batch]
    assert [r.token_ids for r in spec.generate(batch, max_tokens=8)] == [r.token_ids for r in solo]


def prefix(model: Any, sound: Features = SOUND) -> tuple[int, ...]:
    return wrap_model(model).open(sound).prefix


def test_whisper_finds_the_language_as_transformers_does() -> None:
    model = multilingual()
    heard = set()
    for _ in range(6):
        sound = RNG.standard_normal(tiny_models.WHISPER_SHAPE).astype(np.float32)
        (language,) = model.detect_language(torch.tensor(sound)[None], num_segment_frames=60)
        assert prefix(model, sound) == (START, int(language), TASKS["transcribe"], NO_TIMESTAMPS)
        heard.add(int(language))
    assert heard <= set(LANGUAGES)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"language": "en"}, (START, 20, 50, NO_TIMESTAMPS)),
        ({"language": "German", "task": "translate"}, (START, 21, 51, NO_TIMESTAMPS)),
        ({"language": "<|de|>"}, (START, 21, 50, NO_TIMESTAMPS)),
        ({"forced_decoder_ids": [[2, 51], [1, 21]]}, (START, 21, 51, NO_TIMESTAMPS)),
        ({"forced_decoder_ids": [[1, 21], [2, 50], [3, 52]]}, (START, 21, 50, NO_TIMESTAMPS)),
        ({"forced_decoder_ids": [[1, 21]], "language": "en"}, (START, 20, 50, NO_TIMESTAMPS)),
    ],
)
def test_whisper_begins_as_its_settings_say(
    settings: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert prefix(multilingual(**settings)) == expected


def test_whisper_of_english_alone() -> None:
    model = tiny_models.whisper()
    model.generation_config.no_timestamps_token_id = NO_TIMESTAMPS
    assert prefix(model) == (START, NO_TIMESTAMPS)


def test_a_forced_task_leaves_the_language_open() -> None:
    start, language, task, end = prefix(multilingual(forced_decoder_ids=[[1, None], [2, 51]]))
    assert (start, task, end) == (START, 51, NO_TIMESTAMPS)
    assert language in LANGUAGES


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"language": "klingon"}, "does not know the language 'klingon'"),
        ({"task": "sing"}, "does not know the task 'sing'"),
        ({"lang_to_id": None}, "must be told what to transcribe"),
    ],
)
def test_whisper_settings_that_do_not_say(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        draftproof.from_transformers(multilingual(**settings))


def test_the_decoder_prefix_can_be_given() -> None:
    target, near = multilingual(lang_to_id=None), multilingual(1, lang_to_id=None)
    first = (START, 33, 50)
    expected = draftproof.from_transformers(target, decoder_prefix=first)
    pair = draftproof.from_transformers(target, near, decoder_prefix=first, draft_length=3)
    result = pair.generate(SOUND, max_tokens=20)
    assert result.token_ids == expected.generate(SOUND, max_tokens=20).token_ids
    assert pair.target.open(SOUND).prefix == first
    assert pair.drafter is not None
    assert pair.drafter.model is not None
    assert pair.drafter.model.open(SOUND).prefix == first


def test_decoder_prefixes_that_do_not_fit() -> None:
    with pytest.raises(InvalidSetting, match="cannot begin with token 96"):
        draftproof.from_transformers(tiny_models.t5(), decoder_prefix=[tiny_models.VOCAB])
    with pytest.raises(InvalidSetting, match="no first token"):
        draftproof.from_transformers(tiny_models.t5(), decoder_prefix=[])
    for model in (tiny_models.llama(), wrap_model(tiny_models.t5())):
        with pytest.raises(InvalidSetting, match="first tokens of a decoder"):
            draftproof.from_transformers(model, decoder_prefix=[1])
