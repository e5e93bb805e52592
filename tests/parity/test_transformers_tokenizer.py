"""transformers' tokenizers behind the port."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models

from draftproof.backends import wrap_tokenizer
from draftproof.backends.tokenizer import TransformersTokenizer
from draftproof.backends.wrap import implements
from draftproof.errors import InvalidInput, UnsupportedModel
from draftproof.ports import Tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<s>{{ m.content }}{% endfor %}{% if add_generation_prompt %}</s>{% endif %}"
)


def wrapped(**settings: Any) -> Tokenizer:
    return wrap_tokenizer(tiny_models.tokenizer(**settings))


def test_text_comes_back() -> None:
    tokenizer = wrapped()
    assert isinstance(tokenizer, Tokenizer)
    text = "hello , world ! don't  stop"
    ids = tokenizer.encode(text)
    assert ids[0] == 1  # <s>
    assert tokenizer.encode(text, special=False) == ids[1:]
    assert tokenizer.decode(ids) == text  # spaces before punctuation stay


def test_ids_that_decode_to_nothing() -> None:
    tokenizer = wrapped()
    ids = tokenizer.encode("hello", special=False)
    assert tokenizer.decode([1, *ids, 2, 10**6, -1]) == "hello"
    assert tokenizer.decode([]) == ""


def test_vocabulary_holds_special_tokens_and_is_made_once() -> None:
    tokenizer = wrapped()
    assert tokenizer.vocabulary["<s>"] == 1
    assert tokenizer.vocabulary["h"] in tokenizer.encode("h")
    assert tokenizer.vocabulary is tokenizer.vocabulary


def test_chat() -> None:
    tokenizer = wrapped(chat_template=TEMPLATE)
    hello = tokenizer.encode("hello", special=False)
    assert tokenizer.chat([{"role": "user", "content": "hello"}]) == (1, *hello, 2)


def test_chat_without_a_template() -> None:
    with pytest.raises(UnsupportedModel, match="no chat template"):
        wrapped().chat([{"role": "user", "content": "hello"}])


def test_chat_that_the_template_refuses() -> None:
    with pytest.raises(InvalidInput, match="refuses") as caught:
        wrapped(chat_template=TEMPLATE).chat([{"role": "tool", "content": "hello"}])
    assert caught.value.why == "no tools"


def test_processors_and_ready_tokenizers() -> None:
    inner = tiny_models.tokenizer()
    tokenizer = wrap_tokenizer(SimpleNamespace(tokenizer=inner))
    assert tokenizer.encode("hello") == wrapped().encode("hello")
    assert wrap_tokenizer(tokenizer) is tokenizer


def test_knowing_a_tokenizer_evaluates_no_property() -> None:
    """Before Python 3.12 `isinstance` with a protocol does; a model's memory would cost a pass."""

    class Slow(TransformersTokenizer):
        @property
        def vocabulary(self) -> Any:  # type: ignore[override]
            raise AssertionError("evaluated")

    assert implements(Slow(tiny_models.tokenizer()), Tokenizer)
    assert not implements(tiny_models.tokenizer(), Tokenizer)
