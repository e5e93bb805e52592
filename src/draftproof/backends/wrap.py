"""Models and tokenizers that a user loaded with transformers, behind the ports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftproof.backends.runtime import quiet, require_runtime
from draftproof.errors import InvalidInput
from draftproof.ports import Model, Tokenizer


def wrap_model(model: Any, name: str | None = None) -> Model:
    """A loaded transformers model, or a `Model`, as a `Model`. The object is only read.

    Args:
        model: The object.
        name: What messages call it; by default where it was loaded from.

    Raises:
        InvalidInput: It is neither.
        UnsupportedModel: Its cache cannot be rewound.
        MissingExtra: torch or transformers is not installed.
    """
    if isinstance(model, Model):
        return model
    require_runtime()
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise InvalidInput(
            f"a {type(model).__name__} is not a model that can be used here",
            why="models are objects of transformers, or implement draftproof.ports.Model",
            remedy="load it with transformers, or pass a path or a name to `load`",
        )
    if model.config.is_encoder_decoder:
        from draftproof.backends.seq2seq import Seq2SeqModel

        return Seq2SeqModel(model, name)
    from draftproof.backends.causal import CausalModel

    return CausalModel(model, name)


def wrap_tokenizer(tokenizer: Any) -> Tokenizer:
    """A transformers tokenizer or processor, or a `Tokenizer`, as a `Tokenizer`."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    from draftproof.backends.tokenizer import TransformersTokenizer

    return TransformersTokenizer(tokenizer)


def tokenizer_beside(model: Any) -> Tokenizer | None:
    """The tokenizer in the folder or in the cached hub repository that `model` came from.

    Returns:
        None where there is none; the network is not asked.
    """
    origin = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
    if not origin:
        return None
    require_runtime()
    from transformers import AutoTokenizer

    source: Any = Path(origin) if Path(origin).is_dir() else origin
    with quiet():
        try:
            return wrap_tokenizer(AutoTokenizer.from_pretrained(source, local_files_only=True))
        except (OSError, ValueError, KeyError):
            return None
