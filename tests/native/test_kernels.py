"""Matrices: packed without loss, multiplied right, and every row's bits its own.

Every table of kernels that runs here is tested; a build with `DRAFTPROOF_EMULATE` adds AVX-512's.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from gguf import quants as gguf_quants

native: Any = pytest.importorskip(
    "draftproof._native", reason="the CPU engine was not built", exc_type=ImportError
)

TABLES: list[str] = native.kernels()
FORMATS: list[str] = list(native.TYPES)
QUANTISED = [name for name in FORMATS if native.TYPES[name][1] > 1]
# Where a block holds its fp16 scales.
SCALES = {"Q6_K": [208]} | {name: [0, 2] for name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K")}
GROUP = 32
PANEL = 16


def random_file(name: str, rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """The bytes of a tensor: every value of the quants; scales negative, zero and subnormal too."""
    rng = np.random.default_rng(seed)
    _, block, size = native.TYPES[name]
    if block == 1:
        values = rng.normal(size=(rows, cols)).astype(np.float32)
        values[:3, 0] = [0.0, -0.0, 1e-6][:rows]
        if name == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float16 if name == "F16" else np.float32).view(np.uint8)
    raw = rng.integers(0, 256, (rows, cols // block, size), dtype=np.uint8)
    for i, at in enumerate(SCALES.get(name, [0])):
        scale = rng.normal(0, 0.01, raw.shape[:2]).astype(np.float16)
        scale[0, 0] = (0.0, -0.0, 6e-8, 1e-5)[(i + seed) % 4]
        raw[:, :, at : at + 2] = scale[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


def dequantized(name: str, raw: np.ndarray, cols: int) -> np.ndarray:
    source = raw.view({"F32": np.float32, "F16": np.float16}.get(name, np.uint8))
    values = gguf_quants.dequantize(source, gguf.GGMLQuantizationType[name])
    return np.asarray(values, dtype=np.float32).reshape(len(raw), cols)


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint32)


def activations(n: int, cols: int, seed: int = 1) -> np.ndarray:
    """Rows of very different size, with a few groups of zeros."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, cols)) * 10.0 ** rng.integers(-3, 3, (n, 1))
    x[1::3, :GROUP] = 0.0
    return x.astype(np.float32)


def block_of(name: str) -> int:
    return int(max(native.TYPES[name][1], GROUP if name in QUANTISED else 1))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("blocks", [1, 3])
def test_packed_rows_are_the_files_own_bit_for_bit(name: str, blocks: int) -> None:
    rows, cols = 21, blocks * block_of(name)
    for seed in range(4):
        raw = random_file(name, rows, cols, seed)
        matrix = native.Matrix(name, rows, cols, raw)
        got = np.stack([matrix.row(i) for i in range(rows)])
        assert np.array_equal(bits(got), bits(dequantized(name, raw, cols)))


@pytest.mark.parametrize("name", ["BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_packed_rows_of_what_the_gguf_package_quantized(name: str) -> None:
    values = np.random.default_rng(5).normal(size=(35, 96)).astype(np.float32)
    raw = gguf_quants.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8)
    matrix = native.Matrix(name, 35, 96, raw)
    got = np.stack([matrix.row(i) for i in range(35)])
    assert np.array_equal(bits(got), bits(dequantized(name, raw, 96)))
    assert np.abs(got - values).max() < 0.5  # and it is those values that were packed


@pytest.mark.parametrize("name", FORMATS)
def test_packing_costs_little(name: str) -> None:
    raw = random_file(name, 64, 1536)
    assert native.Matrix(name, 64, 1536, raw).bytes <= 1.03 * raw.nbytes


def reference(
    name: str, weights: np.ndarray, x: np.ndarray, table: str
) -> tuple[np.ndarray, np.ndarray]:
    """The product in float64 of the weights and what the table makes of x; and a bound.

    The bound allows every addition an error of half a float's last bit, relative to the largest
    value that the sum can reach.
    """
    seen = x.astype(np.float64)
    if name in QUANTISED:
        rows = [native.quantize(table, row) for row in x]
        quants = np.stack([row[0] for row in rows]).astype(np.float64)
        seen = quants * np.repeat(np.stack([row[1] for row in rows]), GROUP, axis=1)
    exact = seen @ weights.T.astype(np.float64)
    if (
        name in QUANTISED
    ):  # scale and minimum add apart, and may be larger than the weights they make
        reach = np.abs(seen).sum(axis=1, keepdims=True) * np.abs(weights).max(axis=1)
        return exact, (2 * x.shape[1] / GROUP + 4) * 2.0**-24 * reach
    return exact, x.shape[1] * 2.0**-24 * (np.abs(seen) @ np.abs(weights.T))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (16, 1), (37, 2), (50, 3)])
def test_products_are_right(table: str, name: str, rows: int, blocks: int) -> None:
    cols = blocks * block_of(name)
    raw = random_file(name, rows, cols)
    weights = dequantized(name, raw, cols)
    x = activations(5, cols)
    got = native.Matrix(name, rows, cols, raw).matmul(x, table)
    exact, bound = reference(name, weights, x, table)
    assert np.all(np.abs(got - exact) <= bound)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", FORMATS)
def test_the_bound_catches_one_wrong_weight(table: str, name: str) -> None:
    rows, cols = 16, 512
    raw = random_file(name, rows, cols, seed=2)
    weights = dequantized(name, raw, cols)
    x = activations(1, cols)
    got = native.Matrix(name, rows, cols, raw).matmul(x, table)
    column = int(np.abs(x[0]).argmax())
    wrong = weights.copy()
    wrong[:, column] *= 1.05
    exact, bound = reference(name, wrong, x, table)
    moved = np.abs(weights[:, column]) > np.abs(weights).max(axis=1) / 8
    assert moved.any()
    assert np.all((np.abs(got - exact) > bound)[:, moved])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_the_same_bits_in_any_company(table: str, name: str) -> None:
    rows, cols = 37, 512
    matrix = native.Matrix(name, rows, cols, random_file(name, rows, cols))
    x = activations(16, cols)
    alone = np.concatenate([matrix.matmul(x[i : i + 1], table) for i in range(16)])
    for n in range(1, 17):
        for start in {0, (16 - n) // 2, 16 - n}:
            together = matrix.matmul(x[start : start + n], table)
            assert np.array_equal(bits(together), bits(alone[start : start + n]))
    many = matrix.matmul(np.concatenate([x, x[::-1], x[:3]]), table)
    assert np.array_equal(bits(many), bits(np.concatenate([alone, alone[::-1], alone[:3]])))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_the_same_bits_however_panels_are_split(table: str, name: str) -> None:
    rows, cols = 70, 256
    matrix = native.Matrix(name, rows, cols, random_file(name, rows, cols))
    x = activations(9, cols)
    whole = matrix.matmul(x, table)
    for begin in range(matrix.panels + 1):
        for end in range(begin, matrix.panels + 1):
            part = matrix.matmul(x, table, begin, end)
            inside = slice(begin * PANEL, end * PANEL)
            assert np.array_equal(bits(part[:, inside]), bits(whole[:, inside]))
            part[:, inside] = 0.0
            assert not part.any()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", FORMATS)
def test_bits_tell_the_order_of_a_sum(table: str, name: str) -> None:
    """The control: the same products, added in another order, have other bits somewhere."""
    rows, cols = 64, 2048
    block, size = native.TYPES[name][1:]
    raw = random_file(name, rows, cols)
    x = activations(8, cols)
    turned = raw.reshape(rows, cols // block, size)[:, ::-1].reshape(rows, -1)
    turned_x = np.ascontiguousarray(x.reshape(8, cols // block, block)[:, ::-1]).reshape(8, cols)
    got = native.Matrix(name, rows, cols, raw).matmul(x, table)
    other = native.Matrix(name, rows, cols, np.ascontiguousarray(turned)).matmul(turned_x, table)
    assert np.allclose(got, other, rtol=1e-2, atol=1e-2 * np.abs(got).max())
    assert not np.array_equal(bits(got), bits(other))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_every_output_of_its_row(
    table: str, name: str, value: float
) -> None:
    rows, cols = 20, 256
    raw = random_file(name, rows, cols, seed=3)
    x = activations(3, cols)
    x[1, 77] = value
    got = native.Matrix(name, rows, cols, raw).matmul(x, table)
    assert not np.isfinite(got[1]).any()
    assert np.isfinite(got[[0, 2]]).all()


@pytest.mark.parametrize("table", [table for table in TABLES if table != "portable"])
@pytest.mark.parametrize("name", FORMATS)
def test_tables_agree_with_the_portable_one(table: str, name: str) -> None:
    rows, cols = 48, 768
    matrix = native.Matrix(name, rows, cols, random_file(name, rows, cols))
    x = activations(6, cols)
    got, expected = matrix.matmul(x, table), matrix.matmul(x, "portable")
    largest = np.abs(expected).max(axis=1, keepdims=True)
    assert np.all(np.abs(got - expected) <= 4e-6 * largest)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "Q4_K"])
@pytest.mark.parametrize("cols", [1 << 17, 1 << 19])
def test_very_wide_matrices(table: str, name: str, cols: int) -> None:
    """Wider than what a table may keep of 8 rows, or of one."""
    raw = random_file(name, 3, cols)
    x = activations(5, cols)
    matrix = native.Matrix(name, 3, cols, raw)
    got = matrix.matmul(x, table)
    exact, bound = reference(name, dequantized(name, raw, cols), x, table)
    assert np.all(np.abs(got - exact) <= bound)
    assert np.array_equal(bits(matrix.matmul(x[4:], table)), bits(got[4:]))


@pytest.mark.parametrize(
    ("name", "rows", "cols", "size", "reason"),
    [
        ("Q9_9", 1, 32, 34, "no type 'Q9_9'"),
        ("Q8_0", 1, 33, 34, "blocks of 32"),
        ("Q4_K", 1, 128, 72, "blocks of 256"),
        ("Q8_0", 2, 32, 67, "do not fit 67 bytes"),
        ("F32", 2, 2, 20, "do not fit 20 bytes"),
        ("F32", 1 << 62, 4, 16, "do not fit 16 bytes"),
        ("F32", 0, 4, 0, "at least one row"),
        ("F32", 4, -4, 0, "at least one row"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    name: str, rows: int, cols: int, size: int, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        native.Matrix(name, rows, cols, np.zeros(size, np.uint8))


def test_arguments_that_do_not_fit_are_refused() -> None:
    matrix = native.Matrix("F32", 2, 4, np.zeros(32, np.uint8))
    with pytest.raises(ValueError, match="as many columns"):
        matrix.matmul(np.zeros((1, 3), np.float32), "portable")
    with pytest.raises(ValueError, match="no kernels 'abacus'"):
        matrix.matmul(np.zeros((1, 4), np.float32), "abacus")
    with pytest.raises(ValueError, match="no such panels"):
        matrix.matmul(np.zeros((1, 4), np.float32), "portable", 0, 2)
    with pytest.raises(IndexError, match="no such row"):
        matrix.row(2)


def test_the_portable_table_runs_everywhere() -> None:
    assert TABLES[-1] == "portable"
