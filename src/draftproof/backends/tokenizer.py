"""transformers' tokenizers behind the port `Tokenizer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from draftproof.errors import InvalidInput, UnsupportedModel


class TransformersTokenizer:
    """A tokenizer, or the tokenizer of a processor (Whisper's), as a `Tokenizer`.

    Args:
        tokenizer: What `AutoTokenizer` or `AutoProcessor` loads; it is only read.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = getattr(tokenizer, "tokenizer", tokenizer)

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Token ids of `text`; with `special`, the special tokens that it adds by default too."""
        return tuple(self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens and ids outside the vocabulary give nothing."""
        known = [token for token in ids if token in self._ids]
        text: str = self.tokenizer.decode(
            known, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Token ids of a conversation, ready for the answer.

        Raises:
            UnsupportedModel: The tokenizer has no chat template.
            InvalidInput: The template refuses the messages.
        """
        if not self.tokenizer.chat_template:
            raise no_chat_template(self.tokenizer.name_or_path or "this model")
        from jinja2 import TemplateError

        try:
            ids = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        except TemplateError as error:
            raise refused_by_template(error) from error
        return tuple(ids)

    @cached_property
    def vocabulary(self) -> Mapping[str, int]:
        """The id of every token string, special tokens included."""
        return dict(self.tokenizer.get_vocab())

    @cached_property
    def _ids(self) -> frozenset[int]:
        return frozenset(self.vocabulary.values())


def no_chat_template(name: str) -> UnsupportedModel:
    """The error where a conversation goes to a model without a chat template."""
    return UnsupportedModel(
        f"the tokenizer of {name} has no chat template",
        why="nothing says how the model wants a conversation written",
        remedy="pass plain text instead, or use a model that was tuned for chat",
    )


def refused_by_template(error: Exception) -> InvalidInput:
    """The error where a chat template does not go with the messages."""
    return InvalidInput(
        "the model's chat template refuses the messages",
        why=str(error),
        remedy="change the roles or their order",
    )
