"""What both kinds of model read off an object that transformers loaded; nothing is written."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import torch

from draftproof.backends.attention import fewest_rows
from draftproof.backends.session import CachedSession, Decoder
from draftproof.core import Prompt
from draftproof.errors import InvalidInput, UnsupportedModel

# Where configurations keep the number of positions, the decoder's own first.
CONTEXT_NAMES = (
    "max_target_positions",
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "n_ctx",
)


class LoadedModel:
    """A transformers model as far as both kinds are alike.

    Args:
        model: The loaded model, in evaluation mode; it is only read.
        name: What messages call it; by default where it was loaded from.

    Raises:
        UnsupportedModel: Its decoder state cannot be rewound, or it is not a generative model.
    """

    ids_name: str

    def __init__(self, model: Any, name: str | None = None) -> None:
        self.model = model
        self.config = model.config.get_text_config(decoder=True)
        origin = str(getattr(model.config, "_name_or_path", "") or "").rstrip("/")
        self._name = name or origin.rsplit("/", 1)[-1] or type(model).__name__
        self._parameters = frozenset(inspect.signature(model.forward).parameters)
        self._refuse_unrewindable()
        self.decoder = Decoder(
            model=model,
            name=self._name,
            vocab_size=self.vocab_size,
            input_rows=model.get_input_embeddings().weight.shape[0],
            context_length=self.context_length,
            device=model.get_input_embeddings().weight.device,
            ids=self.ids_name,
            cache="cache" if "cache" in self._parameters else "past_key_values",
            keep="logits_to_keep" if "logits_to_keep" in self._parameters else None,
            fewest=fewest_rows(model),
        )

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._name

    @cached_property
    def vocab_size(self) -> int:
        """Rows of the output head."""
        head = self.model.get_output_embeddings()
        return int(getattr(head, "out_features", None) or self.config.vocab_size)

    @cached_property
    def context_length(self) -> int | None:
        """Most tokens in a session.

        Rotary embeddings of the kinds `dynamic` and `longrope` change their frequencies at the
        model's original length, for tokens that are cached already too. Up to there a pass gives
        the same logits however it is cut into passes, so there the context ends.
        """
        if hasattr(self.config, "relative_attention_num_buckets"):
            return None  # T5: a bias by distance, whatever the length
        found = (getattr(self.config, name, None) for name in CONTEXT_NAMES)
        limits = [n for n in found if isinstance(n, int) and n > 0][:1]
        rope = getattr(self.config, "rope_parameters", None) or {}
        for settings in (rope, *(v for v in rope.values() if isinstance(v, dict))):
            if settings.get("rope_type") in ("dynamic", "longrope"):
                original = settings.get("original_max_position_embeddings")
                limits += [original] if isinstance(original, int) else []
        return min(limits, default=None)

    @cached_property
    def eos(self) -> frozenset[int]:
        """The generation settings' end-of-sequence tokens, else the configuration's."""
        settings = getattr(self.model, "generation_config", None)
        for owner in (settings, self.config):
            ids = getattr(owner, "eos_token_id", None)
            if ids is not None:
                return frozenset(self._known([ids] if isinstance(ids, int) else ids))
        return frozenset()

    @cached_property
    def banned(self) -> tuple[tuple[int, ...], ...]:
        """`bad_words_ids` and `suppress_tokens` of the generation settings."""
        words = self._setting("bad_words_ids")
        sequences = [tuple(word) for word in words if word and len(self._known(word)) == len(word)]
        return tuple(
            sequences + [(token,) for token in self._known(self._setting("suppress_tokens"))]
        )

    @cached_property
    def banned_first(self) -> frozenset[int]:
        """`begin_suppress_tokens` of the generation settings."""
        return frozenset(self._known(self._setting("begin_suppress_tokens")))

    @cached_property
    def weight_bytes(self) -> int:
        """Memory of parameters and buffers, tied ones once."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return sum({(t.device, t.data_ptr(), t.nbytes): t.nbytes for t in tensors}.values())

    @cached_property
    def cache_bytes_per_token(self) -> int:
        """Memory of a token's keys and values, measured once by a pass over one token.

        A session's buffers grow by doubling, so it may hold up to twice its tokens' memory.
        """
        session = self.open(self._shortest_prompt())
        try:
            session.score(session.prefix[:1], keep=0)
            return session.cache.bytes_per_token
        finally:
            session.close()

    def open(self, prompt: Prompt) -> CachedSession:
        """A new session."""
        raise NotImplementedError

    def info(self) -> dict[str, object]:
        """What reports say of it; kernels and threads are those of a CPU."""
        on_cpu = self.model.device.type == "cpu"
        return {
            "backend": "torch",
            "device": str(self.model.device),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "kernels": torch.backends.cpu.get_cpu_capability() if on_cpu else None,
            "threads": torch.get_num_threads() if on_cpu else None,
        }

    def _shortest_prompt(self) -> Prompt:
        raise NotImplementedError

    def _refuse_unrewindable(self) -> None:
        raise NotImplementedError

    def _refuse(self, fault: str) -> UnsupportedModel:
        """The error for a model whose state cannot be rewound."""
        return UnsupportedModel(
            f"{self._name} ({type(self.model).__name__}) {fault}",
            why="after a rejected draft a model must forget the last tokens exactly, and only "
            "keys and values of attention can be forgotten so",
            remedy="use a model whose layers are all attention with a key-value cache",
        )

    def _refuse_training(self) -> None:
        """Dropout would make the logits random; evaluation mode is the user's to set."""
        if any(module.training for module in self.model.modules()):
            raise InvalidInput(
                f"{self._name} is in training mode",
                why="dropout and the like would make its logits random",
                remedy="call `model.eval()` first",
            )

    def _setting(self, name: str) -> Iterable[Any]:
        return getattr(getattr(self.model, "generation_config", None), name, None) or ()

    def _known(self, ids: Iterable[int]) -> list[int]:
        return [int(token) for token in ids if 0 <= token < self.vocab_size]
