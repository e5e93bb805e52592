"""Attention whose bits do not depend on how many tokens a pass has.

PyTorch picks its kernels by shape, so that a position's logits differ in their last bits between a
pass over one token and a pass over five, and a near-tie can flip. In bfloat16 on a CPU that
computes in it, linear layers turn out to differ only between one row and several, and attention
by the numbers of rows and of keys. So here each row is an item of the batch, which kernels treat
apart; the keys are padded to whole buckets, whose masked ends add exact zeros; and no pass has a
single row. Then nothing is left to vary, as far as it was looked:
`tests/parity/test_attention.py` and `draftproof check` compare the bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

NAME = "draftproof_rows"
BUCKET = 64  # keys; the sums run over whole vectors then, wherever a row's last key is
FEWEST_ROWS = 2  # a product with one row has a kernel of its own
MOST_ROWS = 32  # longer passes read prompts, which plain decoding reads in the same pass


def row_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """Attention for transformers: query [1, heads, rows, width], keys [1, groups, length, width].

    Args:
        module: The attention layer.
        query: The pass's tokens.
        key: All tokens' keys, the pass's last.
        value: Their values.
        attention_mask: What each row may see, [1, 1, rows, length]; None for all up to itself.
        dropout: As transformers hands it on; inference has none.
        scaling: Of the scores.
        kwargs: As transformers hands them on.

    Returns:
        [1, rows, heads, width], and no attention weights.
    """
    batch, heads, rows, width = query.shape
    plain = attention_mask is None or attention_mask.shape[:2] == (1, 1)
    if batch > 1 or rows > MOST_ROWS or not plain or kwargs.get("position_bias") is not None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        result: tuple[Any, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
        return result
    groups, length = key.shape[1], key.shape[2]
    missing = -length % BUCKET
    seen = visible(attention_mask, rows, length, query.device)
    output = scaled_dot_product_attention(
        query.transpose(1, 2).reshape(rows, groups, heads // groups, width),
        pad(key, (0, 0, 0, missing)).expand(rows, -1, -1, -1),
        pad(value, (0, 0, 0, missing)).expand(rows, -1, -1, -1),
        attn_mask=pad(seen, (0, missing), value=False)[:, None, None, :],
        scale=scaling,
    )
    return output.reshape(1, rows, heads, value.shape[-1]), None


def visible(mask: Any, rows: int, length: int, device: Any) -> Any:
    """Which keys each row sees: bool [rows, length]."""
    if mask is not None:
        return mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] >= 0
    last = torch.arange(length - rows, length, device=device)
    return torch.arange(length, device=device)[None, :] <= last[:, None]


def steady(model: Any) -> None:
    """Give a model that was loaded here this attention, where it makes the bits independent.

    That is bfloat16 on a CPU, decoder-only, with PyTorch's own attention as the default.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    config = model.config
    fits = model.dtype == torch.bfloat16 and model.device.type == "cpu"
    if not fits or config.is_encoder_decoder or config._attn_implementation != "sdpa":
        return
    AttentionInterface.register(NAME, row_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def fewest_rows(model: Any) -> int:
    """The fewest tokens that a pass of this model may have."""
    return FEWEST_ROWS if model.config._attn_implementation == NAME else 1
