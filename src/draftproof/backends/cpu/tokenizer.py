"""The `tokenizers` library behind the port `Tokenizer`: of GGUF files and of model folders.

`vocabularies.py` builds those of GGUF files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from draftproof.backends.cpu.chat import ChatTemplate
from draftproof.backends.cpu.vocabularies import damaged, read_vocabulary
from draftproof.backends.tokenizer import no_chat_template
from draftproof.errors import InvalidInput, ModelNotFound, UnsupportedModel

IDS = range(2**32)  # what the library can look up
NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class FastTokenizer:
    """A tokenizer of the `tokenizers` library, with a chat template, as a `Tokenizer`.

    Args:
        tokenizer: Encodes and decodes; its special tokens are those that decoding leaves out.
        name: What messages call the model.
        template: The source of the chat template; None where there is none.
        named: The strings of the special tokens by their names in templates, such as "bos_token".
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        name: str,
        *,
        template: str | None = None,
        named: Mapping[str, str] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.name = name
        self.named = dict(named or {})
        self._template = ChatTemplate(template) if template else None

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Token ids of `text`; with `special`, framed by the tokens the model's prompts have.

        Raises:
            InvalidInput: The text holds half of a surrogate pair, which no byte sequence spells.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"the text holds the lone surrogate {text[error.start]!r}",
                why="it has no UTF-8 bytes, and tokens are made of those",
                remedy="leave it out; it often comes from bytes that were decoded wrongly",
            ) from error
        return tuple(self.tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens and ids outside the vocabulary give nothing."""
        # The library passes over ids that it does not know, and refuses those that are no uint32.
        known = [token for token in ids if token in IDS]
        text: str = self.tokenizer.decode(known, skip_special_tokens=True)
        return text

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Token ids of a conversation, ready for the answer.

        Raises:
            UnsupportedModel: There is no chat template, or it is not written correctly.
            InvalidInput: The template refuses the messages, or there are none.
        """
        if self._template is None:
            raise no_chat_template(self.name)
        return self.encode(self._template.render(messages, self.named), special=False)

    @cached_property
    def vocabulary(self) -> Mapping[str, int]:
        """The id of every token string, special tokens included."""
        vocabulary: dict[str, int] = self.tokenizer.get_vocab(with_added_tokens=True)
        return vocabulary


class GgufTokenizer(FastTokenizer):
    """The tokenizer of a GGUF file.

    Args:
        metadata: The file's metadata by their keys; strings as str, arrays as sequences.
        name: What messages call the model; by default what the file calls it.

    Raises:
        UnsupportedModel: The vocabulary, or the way to cut text for it, is not known.
        ModelCorrupt: Something is missing from the vocabulary, or does not fit together.
    """

    def __init__(self, metadata: Mapping[str, Any], name: str | None = None) -> None:
        tokenizer, named = read_vocabulary(metadata)
        super().__init__(
            tokenizer,
            name or str(metadata.get("general.name", "this model")),
            template=metadata.get("tokenizer.chat_template"),
            named=named,
        )


def from_folder(folder: Path) -> FastTokenizer:
    """The tokenizer of a model in a folder, from its `tokenizer.json` and what stands beside it.

    As in transformers, what a prompt begins and ends with is what `tokenizer.json` says, whatever
    `tokenizer_config.json` says.

    Raises:
        ModelNotFound: The folder holds no tokenizer.
        UnsupportedModel: It holds one in another format only.
        ModelCorrupt: A file is damaged.
    """
    source = folder / "tokenizer.json"
    if not source.is_file():
        raise _missing(folder)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(source))
    except Exception as error:  # the library raises Exception itself
        raise damaged(f"{source}: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    settings = {
        **_json(folder / "special_tokens_map.json"),
        **_json(folder / "tokenizer_config.json"),
    }
    named = {name: text for name in NAMED if (text := _content(settings.get(name))) is not None}
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(text, normalized=False, special=True) for text in named.values()]
    )
    return FastTokenizer(tokenizer, folder.name, template=_template(folder, settings), named=named)


def _missing(folder: Path) -> ModelNotFound | UnsupportedModel:
    others = [
        name
        for name in ("tokenizer.model", "vocab.json", "tekken.json")
        if (folder / name).exists()
    ]
    if others:
        return UnsupportedModel(
            f"{folder} holds its tokenizer as {others[0]} only",
            why="here a folder's tokenizer is read from tokenizer.json",
            remedy="save it again with transformers' AutoTokenizer, which writes that file",
        )
    return ModelNotFound(
        f"{folder} holds no tokenizer",
        why="text becomes token ids by the tokenizer that the model was trained with",
        remedy="put the model's tokenizer files (tokenizer.json) beside its weights",
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise damaged(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise damaged(f"{path} is not a JSON object")
    return value


def _content(token: Any) -> str | None:
    """A special token as a string; files hold strings or objects."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own goes before the setting, which may hold several."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {each["name"]: each["template"] for each in template}.get("default")
    return template if isinstance(template, str) else None
