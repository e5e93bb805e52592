"""One sequence in one transformers model: a pass, and a rewind that costs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from draftproof.backends.cache import RewindableCache
from draftproof.backends.checks import require_pass
from draftproof.backends.memory import allocating
from draftproof.core import Logits
from draftproof.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class Decoder:
    """How the decoder of a loaded model is called.

    Args:
        model: The transformers model.
        name: What messages call it.
        vocab_size: Rows of the output head.
        input_rows: Rows of the input embedding: token ids are below this.
        context_length: Most tokens in a session.
        device: Where token ids go.
        ids: Name of the argument that takes token ids.
        cache: Name of the argument that takes the cache; it also names the cache in the output.
        keep: Name of the argument that limits the logits to the last positions, if there is one.
        fewest: Fewest tokens of a pass; a shorter one repeats its last token and forgets it again.
    """

    model: Any
    name: str
    vocab_size: int
    input_rows: int
    context_length: int | None
    device: Any
    ids: str
    cache: str
    keep: str | None
    fewest: int = 1


class CachedSession:
    """A `Session`: its cache is appended to in place and rewound in constant time.

    Args:
        decoder: The decoder.
        prefix: The decoder's tokens before the first output token.
        layers: Keys and values of the decoder's self-attention.
        cache: What the model is handed: `layers`, or a cache that holds them.
        fixed: The same arguments in every pass, such as the encoder's output.
    """

    def __init__(
        self,
        decoder: Decoder,
        prefix: tuple[int, ...],
        layers: RewindableCache,
        cache: Any,
        fixed: Mapping[str, Any],
    ) -> None:
        self._decoder = decoder
        self._prefix = prefix
        self._layers = layers
        self._cache = cache
        self._fixed = dict(fixed)
        self._length = 0

    @property
    def prefix(self) -> tuple[int, ...]:
        """The decoder's tokens before the first output token."""
        return self._prefix

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._length

    @property
    def cache(self) -> RewindableCache:
        """Keys and values of the decoder's self-attention."""
        return self._layers

    def score(self, tokens: Sequence[int], keep: int) -> Logits:
        """Append `tokens` and score them in one pass; a pass that fails leaves the cache as it was.

        Args:
            tokens: What follows the cached tokens, at least one.
            keep: How many of the last positions to return logits for.

        Returns:
            The logits after the last `keep` tokens; float32, on the CPU.

        Raises:
            InvalidInput: A token id has no row in the embedding.
            PromptTooLong: The tokens do not fit in the context.
            OutOfMemory: There is no memory for the pass or the cache.
            UnsupportedModel: The model did not use the cache as it must.
        """
        self._check(tokens, keep)
        before = self._length
        extra = self._extra(len(tokens))
        try:
            with (
                torch.inference_mode(),
                allocating(
                    f"a pass of {self._decoder.name} over {len(tokens)} tokens "
                    f"with {before} in its cache",
                    "use a shorter prompt or fewer tokens, a smaller model, or another device",
                ),
            ):
                output = self._run([*tokens, *[tokens[-1]] * extra], keep + extra)
                end = output.logits.shape[1] - extra
                rows = output.logits[0, end - keep : end]
                logits: Logits = rows.to("cpu", torch.float32, copy=True).numpy()
            self._verify(output, before + len(tokens) + extra)
            self._layers.rewind(before + len(tokens))
        except BaseException:
            self._layers.rewind(before)
            raise
        self._length = before + len(tokens)
        return logits

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens; no tensor is touched."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot rewind {self._length} tokens to {length}")
        self._layers.rewind(length)
        self._length = length

    def close(self) -> None:
        """Free the cache and what the encoder made."""
        self._layers = RewindableCache([])
        self._cache = None
        self._fixed = {}
        self._length = 0

    def _run(self, tokens: Sequence[int], keep: int) -> Any:
        decoder = self._decoder
        arguments = {
            decoder.ids: torch.tensor([list(tokens)], dtype=torch.long, device=decoder.device),
            decoder.cache: self._cache,
            "use_cache": True,
            "return_dict": True,
            **self._fixed,
        }
        if decoder.keep is not None:
            arguments[decoder.keep] = max(keep, 1)  # 0 would mean all
        return decoder.model(**arguments)

    def _extra(self, count: int) -> int:
        """Tokens to append to a pass that is too short, as far as the context has room for them."""
        missing = max(0, self._decoder.fewest - count)
        limit = self._decoder.context_length
        return missing if limit is None or self._length + count + missing <= limit else 0

    def _check(self, tokens: Sequence[int], keep: int) -> None:
        decoder = self._decoder
        if self._cache is None:
            raise ValueError("the session is closed")
        require_pass(
            decoder.name,
            tokens,
            keep,
            length=self._length,
            rows=decoder.input_rows,
            context_length=decoder.context_length,
        )

    def _verify(self, output: Any, length: int) -> None:
        """Refuse a model that did something else with the cache than append to every layer."""
        decoder = self._decoder
        returned = getattr(output, decoder.cache, None)
        layers = self._layers.rewindable
        lengths = {layer.length for layer in layers}
        if (returned is not None and returned is not self._cache) or lengths != {length}:
            raise UnsupportedModel(
                f"{decoder.name} ({type(decoder.model).__name__}) does not keep what it reads in "
                "the cache that it is given",
                why="after a rejected draft its state could not be rewound, and every token after "
                "that would be wrong",
                remedy="use a model whose layers are all attention with a key-value cache",
            )
        if output.logits.shape[-1] != decoder.vocab_size:
            raise UnsupportedModel(
                f"the head of {decoder.name} returned {output.logits.shape[-1]} logits",
                why=f"its configuration promises {decoder.vocab_size}",
                remedy="load the model with a configuration that matches its weights",
            )
