"""A key-value cache that is rewound by setting a number.

transformers' own caches append by concatenation, which copies the whole cache in every pass, and
their sliding-window layers forget what a rewind would need. Here every attention layer, sliding and
chunked ones too, keeps all its keys in one buffer with room to spare. transformers makes the masks
from the cache's length, so that a window stays a window however long the keys are, before and
after a rewind.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

SMALLEST = 64  # tokens in the first buffer

# Kinds of layer, in transformers' words, that keep keys and values or nothing at all.
REWINDABLE = {"full_attention", "sliding_attention", "chunked_attention", "moe", "mlp"}


class RewindableLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped
    """One attention layer's keys and values: float [1, heads, length, width], in place."""

    is_sliding = False
    is_croppable = True

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self._key_buffer: Any = None
        self._value_buffer: Any = None

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """Allocate the first buffers, shaped, typed and placed like the states."""
        self.device = key_states.device
        self._key_buffer = _buffer(key_states, SMALLEST)
        self._value_buffer = _buffer(value_states, SMALLEST)
        self.is_initialized = True

    def update(
        self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Append states [1, heads, new, width]; return all of them as views of the buffers."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, new = self.length, key_states.shape[-2]
        capacity = self._key_buffer.shape[-2]
        if start + new > capacity:
            capacity = max(start + new, 2 * capacity)
            self._key_buffer = _grown(self._key_buffer, capacity, start)
            self._value_buffer = _grown(self._value_buffer, capacity, start)
        self._key_buffer.narrow(-2, start, new).copy_(key_states)
        self._value_buffer.narrow(-2, start, new).copy_(value_states)
        self.rewind(start + new)
        return self.keys, self.values

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens: the buffers stay as they are."""
        self.length = length
        if self.is_initialized:
            self.keys = self._key_buffer.narrow(-2, 0, length)
            self.values = self._value_buffer.narrow(-2, 0, length)

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Length and offset of the keys that a pass will see.

        Args:
            query_length: Tokens in the pass; the first releases of transformers 5 hand over the
                tokens' positions, a tensor, instead.
        """
        new = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.length + new, 0

    def get_seq_length(self) -> int:
        """Tokens in the layer."""
        return self.length

    def get_max_length(self) -> int:
        """No limit, in transformers' notation."""
        return -1

    get_max_cache_shape = get_max_length  # its name in the first releases of transformers 5

    @property
    def bytes_per_token(self) -> int:
        """Memory of one token's keys and values; 0 before the first pass."""
        return sum(b.nbytes // b.shape[-2] for b in self._buffers)

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where the buffers lie: unchanged by a rewind, and by a pass that needs no growth."""
        return tuple(b.data_ptr() for b in self._buffers)

    @property
    def _buffers(self) -> list[Any]:
        return [self._key_buffer, self._value_buffer] if self.is_initialized else []


def _buffer(states: Any, length: int) -> Any:
    shape = list(states.shape)
    shape[-2] = length
    return torch.empty(shape, dtype=states.dtype, device=states.device)


def _grown(buffer: Any, capacity: int, used: int) -> Any:
    grown = _buffer(buffer, capacity)
    grown.narrow(-2, 0, used).copy_(buffer.narrow(-2, 0, used))
    return grown


class RewindableCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """The layers of one model.

    Args:
        layers: A layer for each of the model's; None to make them as the first pass asks for them.
    """

    def __init__(self, layers: list[Any] | None = None) -> None:
        if layers is None:
            super().__init__(layer_class_to_replicate=RewindableLayer)
        else:
            super().__init__(layers=layers)

    @property
    def rewindable(self) -> list[RewindableLayer]:
        """The layers that hold keys of their own."""
        return [layer for layer in self.layers if isinstance(layer, RewindableLayer)]

    @property
    def bytes_per_token(self) -> int:
        """Memory of one token's keys and values in all layers; 0 before the first pass."""
        return sum(layer.bytes_per_token for layer in self.rewindable)

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        for layer in self.rewindable:
            layer.rewind(length)


def rewindable_layers(config: Any) -> tuple[list[Any], set[str]]:
    """The layers of a decoder-only model's cache.

    transformers is asked which cache each layer wants. Attention layers get a `RewindableLayer`;
    a layer without keys of its own (it reads another layer's, or has no attention) stays as it is.

    Returns:
        The layers, and the kinds among them that cannot be rewound.
    """
    layers = DynamicCache(config=config).layers
    types = list(getattr(config.get_text_config(decoder=True), "layer_types", None) or ())
    foreign = set(types) - REWINDABLE
    for i, layer in enumerate(layers):
        kind = type(layer)
        if kind in (DynamicLayer, DynamicSlidingWindowLayer):
            layers[i] = RewindableLayer()
        elif kind.__name__ != "DummyLayer":
            foreign.add(types[i] if i < len(types) else kind.__name__)
    return layers, foreign
