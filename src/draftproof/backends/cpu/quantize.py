"""Float matrices to GGUF's Q8_0 and Q4_0, to the reference's bits; 32 weights share a scale."""

from __future__ import annotations

import numpy as np

from draftproof.core import Float32, Shaped

BLOCK = 32  # weights that share a scale
BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18}
AT_ONCE = 1 << 16  # weights, so that intermediate values stay in the processor's cache


def quantize_rows(
    rows: Float32[np.ndarray, "rows cols"], kind: str
) -> Shaped[np.ndarray, "rows row_bytes"]:
    """The bytes of a matrix, uint8.

    Args:
        rows: Finite; a multiple of 32 columns.
        kind: "Q8_0", 8 bits and the scale in 16, or "Q4_0", 4 bits and the scale.

    Raises:
        ValueError: A scale is not finite.
    """
    count, cols = rows.shape
    out = np.empty((count, cols // BLOCK * BLOCK_BYTES[kind]), np.uint8)
    to_blocks = _q8_0 if kind == "Q8_0" else _q4_0
    step = max(1, AT_ONCE // cols)
    for start in range(0, count, step):
        part = rows[start : start + step]
        out[start : start + step] = to_blocks(part.reshape(-1, BLOCK)).reshape(len(part), -1)
    return out


def _q8_0(blocks: Float32[np.ndarray, "blocks 32"]) -> Shaped[np.ndarray, "blocks 34"]:
    """Scale: the largest magnitude / 127. Weights: to nearest, halves away from zero."""
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    half = _half(scale)
    scaled = blocks * _inverse(scale)
    whole = np.rint(scaled)
    ties = np.abs(scaled - whole) == 0.5  # rounded to even
    if ties.any():
        whole[ties] = scaled[ties] + np.copysign(np.float32(0.5), scaled[ties])
    steps = whole.astype(np.int8)
    return np.concatenate([half, steps.view(np.uint8)], axis=1)


def _q4_0(blocks: Float32[np.ndarray, "blocks 32"]) -> Shaped[np.ndarray, "blocks 18"]:
    """Scale: the weight of the largest magnitude / -8, so that it is met exactly."""
    at = np.abs(blocks).argmax(axis=1)[:, None]
    scale = np.take_along_axis(blocks, at, axis=1) / np.float32(-8)
    half = _half(scale)
    steps = (blocks * _inverse(scale) + np.float32(8.5)).astype(np.uint8)
    steps = np.minimum(steps, 15, out=steps)
    low, high = steps[:, : BLOCK // 2], steps[:, BLOCK // 2 :]
    return np.concatenate([half, low | high << np.uint8(4)], axis=1)


def _inverse(scale: Float32[np.ndarray, "blocks 1"]) -> Float32[np.ndarray, "blocks 1"]:
    """0 where the scale is too small for one: such a scale is 0 in 16 bits."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _half(scale: Float32[np.ndarray, "blocks 1"]) -> Shaped[np.ndarray, "blocks 2"]:
    """The bytes of the scale in 16 bits."""
    with np.errstate(over="ignore", under="ignore"):
        half = scale.astype("<f2")
    if not np.isfinite(half).all():
        raise ValueError("a scale is not finite")
    return half.view(np.uint8)
