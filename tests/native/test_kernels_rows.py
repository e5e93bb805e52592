"""What happens to rows between the matrices: quantising, norms, gates, attention, halves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

native: Any = pytest.importorskip(
    "draftproof._native", reason="the CPU engine was not built", exc_type=ImportError
)

pytestmark = pytest.mark.parametrize("table", native.kernels())

ULP = 2.0**-24  # half a float's last bit, relative
LENGTHS = [1, 2, 7, 15, 16, 17, 31, 32, 33, 100, 577]


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint32)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def halves(*shape: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random fp16 numbers: their bits, and what they are in float64."""
    values = normal(*shape, seed=seed).astype(np.float16)
    return values.view(np.uint16), values.astype(np.float64)


# ---- Quantising


def test_quantising(table: str) -> None:
    x = normal(128, 32) * (10.0 ** np.random.default_rng(1).integers(-30, 30, (128, 1)))
    x = x.astype(np.float32)
    x[3] = [0.0, -0.0] * 16
    x[4] = np.float32(2e-36)
    x[5, :31] = 0.0
    x[6] = 1e37
    x[7, :31] = np.arange(31) - 15.5  # with scale 1, ties
    x[7, 31] = -127.0
    quants, scales, scaled_sums, sums = native.quantize(table, x.ravel())
    assert quants.dtype == np.int8
    assert np.array_equal(scales, np.abs(x).max(axis=1) / np.float32(127))
    groups = quants.reshape(-1, 32)
    some = scales > 0
    steps = x[some].astype(np.float64) / scales[some, None]
    assert np.all(np.abs(groups[some] - steps) <= 0.5 + 1e-4)
    assert not groups[~some].any()
    assert np.array_equal(groups[7], np.rint(x[7]))
    assert np.array_equal(np.abs(groups[some]).max(axis=1), np.full(some.sum(), 127))
    assert sums.dtype == np.int16
    sixteens = quants.reshape(-1, 4, 2, 2)  # by fours, and in these by twos
    assert np.array_equal(sums, sixteens.sum(axis=(1, 3)))
    assert np.array_equal(scaled_sums, scales * groups.sum(axis=1).astype(np.float32))


def test_a_group_that_hardly_differs_from_zero_stays_small(table: str) -> None:
    x = np.full(32, 1e-37, np.float32)
    quants, scales, _, _ = native.quantize(table, x)
    assert np.all(np.abs(quants * scales - x) <= x)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_group_that_is_not_finite_is_marked(table: str, value: float) -> None:
    for place in (32, 47, 48, 63):
        x = normal(96)
        x[place] = value
        quants, scales, scaled_sums, sums = native.quantize(table, x)
        assert not np.isfinite(scales[1])
        assert np.isnan(scaled_sums[1])
        assert not quants[32:64].any()
        assert not sums[2:4].any()
        assert np.isfinite(scales[[0, 2]]).all()


# ---- Norms and gates


@pytest.mark.parametrize("n", LENGTHS)
def test_rms_norm(table: str, n: int) -> None:
    x, weight = normal(n) * 7, normal(n, seed=1)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt(np.mean(wide**2) + 1e-5) * weight
    got = native.rms_norm(table, x, weight, 1e-5)
    assert np.all(np.abs(got - expected) <= (n / 8 + 8) * ULP * np.abs(expected))
    without = wide / np.sqrt(np.mean(wide**2)) * weight
    assert np.all(np.abs(native.rms_norm(table, x, weight, 1.0) - without) > 1e-3 * np.abs(without))


def test_rms_norm_passes_on_what_is_not_finite(table: str) -> None:
    for value in (np.nan, np.inf):
        x = normal(40)
        x[33] = value
        assert np.isnan(native.rms_norm(table, x, normal(40), 1e-5)[33])


def silu(gate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return gate / (1 + np.exp(-gate)), np.abs(gate)


def gelu(gate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
    # 0.5 (1 + tanh(z)) without the cancellation.
    return gate / (1 + np.exp(-2 * inner)), np.abs(2 * inner)


GATES = {"silu_mul": silu, "gelu_mul": gelu}


@pytest.mark.parametrize("name", GATES)
def test_gates(table: str, name: str) -> None:
    gate = np.concatenate([np.linspace(-30, 30, 4001), [-0.0, 1e-30, 80.0, 1e4, 1e20]])
    gate = gate.astype(np.float32)
    up = normal(len(gate))
    with np.errstate(over="ignore"):
        value, exponent = GATES[name](gate.astype(np.float64))
        expected = value * up
    got = getattr(native, name)(table, gate, up)
    # An error of the exponent counts as often as the exponent is large.
    bound = (8 + 4 * exponent) * ULP * np.abs(expected) + 1e-35
    assert np.all((np.abs(got - expected) <= bound) | (exponent > 85))
    assert np.abs(got - 1.0001 * expected).max() > bound[exponent < 85].max()


@pytest.mark.parametrize("name", GATES)
def test_a_gate_far_out_is_open_or_shut(table: str, name: str) -> None:
    gate = np.array([-1e30, -200.0, 200.0, 1e30], np.float32)
    got = getattr(native, name)(table, gate, np.ones(4, np.float32))
    assert np.array_equal(got, [0.0, 0.0, 200.0, np.float32(1e30)])
    odd = np.array([np.nan, -np.inf, np.inf], np.float32)
    assert not np.isfinite(getattr(native, name)(table, odd, np.ones(3, np.float32))).any()


@pytest.mark.parametrize("name", GATES)
def test_a_gates_bits_are_its_own(table: str, name: str) -> None:
    gate, up = normal(70) * 5, normal(70, seed=1)
    gated = getattr(native, name)
    alone = np.concatenate([gated(table, gate[i : i + 1], up[i : i + 1]) for i in range(70)])
    for n in range(1, 71):
        for start in {0, (70 - n) // 2, 70 - n}:
            part = slice(start, start + n)
            assert np.array_equal(bits(gated(table, gate[part], up[part])), bits(alone[part]))


# ---- Attention


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 6, 7, 8, 9, 17])
@pytest.mark.parametrize("dim", [16, 64, 80, 128, 256])
def test_attention_scores(table: str, heads: int, dim: int) -> None:
    query = normal(heads, dim)
    keys, values = halves(dim, 16)
    got = native.attention_scores(table, query, keys)
    reach = np.abs(query) @ np.abs(values)
    assert np.all(np.abs(got - query.astype(np.float64) @ values) <= dim * ULP * reach)
    alone = [native.attention_scores(table, query[h : h + 1], keys)[0] for h in range(heads)]
    assert np.array_equal(bits(got), bits(np.stack(alone)))


@pytest.mark.parametrize("positions", [1, 2, 15, 16])
@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 6, 7, 8, 9])
@pytest.mark.parametrize("dim", [16, 64, 80, 256])
def test_attention_values(table: str, positions: int, heads: int, dim: int) -> None:
    weights, before = normal(heads, positions), normal(heads, dim, seed=2)
    stored, values = halves(positions, dim)
    got = native.attention_values(table, weights, stored, before)
    reach = np.abs(before) + np.abs(weights) @ np.abs(values)
    expected = before + weights.astype(np.float64) @ values
    assert np.all(np.abs(got - expected) <= (positions + 1) * ULP * reach)
    one = slice(heads - 1, heads)
    alone = native.attention_values(table, weights[one], stored, before[one])
    assert np.array_equal(bits(got[one]), bits(alone))
    # Position after position, in as many calls as one likes.
    half = positions // 2
    first = before
    if half:
        first = native.attention_values(
            table, np.ascontiguousarray(weights[:, :half]), stored[:half], before
        )
    rest = np.ascontiguousarray(weights[:, half:])
    assert np.array_equal(
        bits(native.attention_values(table, rest, stored[half:], first)), bits(got)
    )


@pytest.mark.parametrize("n", LENGTHS)
def test_softmax(table: str, n: int) -> None:
    scores = normal(n) * 10
    weights, total = native.softmax(table, scores)
    shifted = scores.astype(np.float64) - scores.max()
    expected = np.exp(shifted)
    assert np.all(np.abs(weights[:n] - expected) <= (4 + 2 * np.abs(shifted)) * ULP * expected)
    assert total == pytest.approx(weights.astype(np.float64).sum(), rel=(n / 16 + 5) * ULP)
    assert weights.max() == 1.0
    assert len(weights) % 16 == 0
    assert not weights[n:].any()


def test_softmax_far_from_the_largest(table: str) -> None:
    scores = np.array([0.0, -50.0, -200.0, -1e30, -np.inf], np.float32)
    weights, total = native.softmax(table, scores)
    assert weights[:2] == pytest.approx([1.0, np.exp(-50.0)], rel=1e-5)
    assert not weights[2:].any()
    assert total == 1.0
    assert native.softmax(table, scores + np.float32(3e4))[1] == 1.0


@pytest.mark.parametrize("place", [0, 5, 16, 36])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_softmax_passes_on_what_is_not_finite(table: str, place: int, value: float) -> None:
    scores = normal(37)
    scores[place] = value
    weights, total = native.softmax(table, scores)
    assert np.isnan(total)
    assert np.isnan(weights[place])


# ---- Half precision


def every_half() -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16)


def test_every_half_becomes_the_right_float(table: str) -> None:
    codes = every_half()
    expected = codes.view(np.float16).astype(np.float32)
    got = native.from_half(table, codes)
    numbers = ~np.isnan(expected)
    assert np.array_equal(bits(got)[numbers], bits(expected)[numbers])
    assert np.isnan(got[~numbers]).all()


def test_every_half_returns(table: str) -> None:
    codes = every_half()
    values = native.from_half(table, codes)
    back = native.to_half(table, values)
    numbers = ~np.isnan(values)
    assert np.array_equal(back[numbers], codes[numbers])
    assert np.isnan(back[~numbers].view(np.float16)).all()


def test_floats_round_to_the_nearest_half_ties_to_even(table: str) -> None:
    largest = 0x7C00  # infinity's code; the tie below it is 65520
    low = np.arange(largest, dtype=np.uint16)
    ends = low.view(np.float16).astype(np.float32), (low + 1).view(np.float16).astype(np.float32)
    tie = (ends[0] + np.where(np.isinf(ends[1]), np.float32(65536), ends[1])) / 2
    x = np.concatenate([tie, np.nextafter(tie, np.float32(0)), np.nextafter(tie, np.float32(1e9))])
    x = np.concatenate([x, -x, np.float32([1e6, -1e30, np.inf, 1e-8, 1e-45])])
    with np.errstate(over="ignore", under="ignore"):
        expected = x.astype(np.float16).view(np.uint16)
    assert np.array_equal(native.to_half(table, x), expected)
    assert np.array_equal(native.to_half(table, tie)[1::2], low[1::2] + 1)  # odd below: up
    assert np.array_equal(native.to_half(table, tie)[0::2], low[0::2])  # even below: down


@pytest.mark.parametrize("n", LENGTHS)
def test_halves_in_any_number(table: str, n: int) -> None:
    x = normal(n)
    codes = native.to_half(table, x)
    assert np.array_equal(codes.view(np.float16), x.astype(np.float16))
    assert np.array_equal(native.from_half(table, codes), x.astype(np.float16).astype(np.float32))
