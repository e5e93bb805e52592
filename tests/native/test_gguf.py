"""The native GGUF parser: it reads what the gguf package reads, and damage has its sentence."""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    STRING,
    U8,
    U32,
    U64,
    array,
    build,
    entry,
    number,
    pair,
    text,
)

from draftproof.backends.cpu.gguf import GgufFile, open_gguf, reading
from draftproof.catalog import resolve
from draftproof.errors import ModelCorrupt, ModelNotFound, UnsupportedModel

native: Any = pytest.importorskip(
    "draftproof._native", reason="the CPU engine was not built", exc_type=ImportError
)

BF16_CODE, Q8_CODE, UNKNOWN_CODE = 30, 8, 77
READ = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"}


def write(folder: Path, data: bytes) -> Path:
    path = folder / "made.gguf"
    path.write_bytes(data)
    return path


# --- what is read


def test_every_kind_of_value(tmp_path: Path) -> None:
    """As the gguf package's writer writes them and its reader reads them."""
    kinds = gguf.GGUFValueType
    scalars: dict[str, tuple[Any, Any]] = {
        "u8": (kinds.UINT8, 255),
        "i8": (kinds.INT8, -128),
        "u16": (kinds.UINT16, 65535),
        "i16": (kinds.INT16, -32768),
        "u32": (kinds.UINT32, 2**32 - 1),
        "i32": (kinds.INT32, -(2**31)),
        "u64": (kinds.UINT64, 2**64 - 1),
        "i64": (kinds.INT64, -(2**63)),
        "f32": (kinds.FLOAT32, 0.1),
        "f64": (kinds.FLOAT64, 0.1),
        "yes": (kinds.BOOL, True),
        "no": (kinds.BOOL, False),
        "text": (kinds.STRING, "naïve 数 🙂\0end"),
    }
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(path, "test")
    for name, (kind, value) in scalars.items():
        writer.add_key_value(f"one.{name}", value, kind)
        writer.add_key_value(f"many.{name}", [value] * 3, kinds.ARRAY, sub_type=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    fields = gguf.GGUFReader(path).fields
    metadata = open_gguf(path).metadata
    assert set(metadata) == {name for name in fields if not name.startswith("GGUF.")}
    for name, (kind, value) in scalars.items():
        one, many = metadata[f"one.{name}"], metadata[f"many.{name}"]
        assert one == fields[f"one.{name}"].contents()
        assert type(one) is type(value)
        assert list(many) == fields[f"many.{name}"].contents()
        if kind != kinds.STRING:
            assert many.dtype == gguf.GGUFReader.gguf_scalar_to_np[kind]
            assert not many.flags.writeable


def test_bytes_that_are_not_utf8_come_back(tmp_path: Path) -> None:
    odd = [b"\xff\xfe", b"caf\xe9", b"", b"\xed\xa0\x80", "é".encode()]
    path = write(
        tmp_path, build([pair("tokens", ARRAY, array(STRING, [text(token) for token in odd]))])
    )
    tokens = open_gguf(path).metadata["tokens"]
    assert [token.encode("utf-8", "surrogateescape") for token in tokens] == odd


def test_arrays_within_arrays(tmp_path: Path) -> None:
    inner = [array(U8, [b"\x01", b"\x02"]), array(STRING, [text("a")]), array(U32, [])]
    path = write(
        tmp_path,
        build([pair("nested", ARRAY, array(ARRAY, [array(ARRAY, inner), array(ARRAY, [])]))]),
    )
    (first, second) = open_gguf(path).metadata["nested"]
    assert [list(values) for values in first] == [[1, 2], ["a"], []]
    assert second == []


def test_every_kind_of_tensor(tmp_path: Path) -> None:
    """Names, shapes and bytes; types that the engine does not read are listed, but not given."""
    path = tmp_path / "tensors.gguf"
    writer = gguf.GGUFWriter(path, "test")
    random = np.random.default_rng(1)
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        columns = max(256 // block, 1) * size  # in bytes, of 256 weights
        writer.add_tensor(
            f"of.{kind.name}", random.integers(0, 256, (2, 3, columns), np.uint8), raw_dtype=kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    reader = gguf.GGUFReader(path)
    file = open_gguf(path)
    assert isinstance(file, GgufFile)
    assert (file.version, file.size) == (3, path.stat().st_size)
    assert file.data_offset == reader.data_offset
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    given = set()
    for tensor in reader.tensors:
        kind, shape = file.tensors[tensor.name]
        assert (kind, list(shape)) == (tensor.tensor_type.name, tensor.shape.tolist())
        if kind in READ:
            assert file.tensor(tensor.name).tobytes() == tensor.data.tobytes()
            given.add(kind)
        else:
            with pytest.raises(native.GgufUnsupported, match=rf"is stored as {kind}, which"):
                file.tensor(tensor.name)
    assert given == READ == set(native.TENSOR_TYPES)


def test_a_type_without_a_name_is_a_code(tmp_path: Path) -> None:
    path = write(tmp_path, build(tensors=[entry("new", (4, 2), UNKNOWN_CODE)], data=1))
    file = open_gguf(path)
    assert file.tensors == {"new": (UNKNOWN_CODE, (4, 2))}
    with pytest.raises(UnsupportedModel, match="'new' is stored as type 77"), reading(path):
        file.tensor("new")


def test_no_dimensions_and_another_alignment(tmp_path: Path) -> None:
    pairs = [pair("general.alignment", U32, number("I", 8))]
    tensors = [entry("one", ()), entry("two", (3,), offset=8)]
    header = build(pairs, tensors)
    data = np.arange(5, dtype=np.float32).tobytes()
    used = len(b"GGUF") + 20 + sum(map(len, pairs + tensors))
    path = write(tmp_path, header[: -(-used // 8) * 8] + data)
    file = open_gguf(path)
    assert file.tensors == {"one": ("F32", ()), "two": ("F32", (3,))}
    assert file.tensor("one").view(np.float32).tolist() == [0]
    assert file.tensor("two").view(np.float32).tolist() == [2, 3, 4]


def test_bytes_outlive_the_file(tmp_path: Path) -> None:
    file = open_gguf(write(tmp_path, build(tensors=[entry("one", (1000,))], data=4000)))
    data = file.tensor("one")
    assert file.metadata is file.metadata
    del file
    gc.collect()
    assert data.shape == (4000,)
    assert not data.any()
    assert not data.flags.writeable


@pytest.mark.weights
def test_smollm2() -> None:
    """A real file, against the gguf package's reader."""
    path = resolve("smollm2-135m")
    reader, file = gguf.GGUFReader(path), open_gguf(path)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF."):
            value = file.metadata[name]
            assert field.contents() == (list(value) if isinstance(value, np.ndarray) else value)
    assert len(file.metadata) == sum(not name.startswith("GGUF.") for name in reader.fields)
    assert len(file.tensors) == len(reader.tensors)
    for tensor in reader.tensors:
        assert file.tensors[tensor.name] == (tensor.tensor_type.name, tuple(tensor.shape.tolist()))
        assert np.array_equal(file.tensor(tensor.name), tensor.data.reshape(-1).view(np.uint8))


# --- what is refused

ONE = entry("one", (8,))  # 32 bytes
HUGE = 2**64 - 1


def deep(levels: int) -> bytes:
    value = array(U8, [])
    for _ in range(levels - 1):
        value = array(ARRAY, [value])
    return value


MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is only 0 bytes long"),
    "magic": (b"GGML" + bytes(60), "the file does not begin like a GGUF file"),
    "version 0": (build(version=0), "the version is 0, at byte 4"),
    "odd version": (build(version=0x01020304), "the version is 16909060, at byte 4"),
    "tensor count": (
        build(counts=(HUGE, 0)),
        f"the number of tensors is {HUGE}, and the file ends 16 bytes later, at byte 8",
    ),
    "pair count": (
        build(counts=(0, 2**60)),
        f"the number of metadata entries is {2**60}, and the file ends 8 bytes later, at byte 16",
    ),
    "one pair too many": (
        build([pair("a", U8, b"\0")] * 1, counts=(0, 2)),
        "the key of a metadata entry is 0 bytes long instead of 1 to 65535, at byte 38",
    ),
    "key length": (
        build([number("Q", HUGE) + bytes(40)]),
        f"the key of a metadata entry is {HUGE} bytes long, and the file ends after 64, at byte 24",
    ),
    "long key": (
        build([pair("k" * 65536, U8, b"\0")]),
        "the key of a metadata entry is 65536 bytes long instead of 1 to 65535, at byte 24",
    ),
    "same key twice": (
        build([pair("b", U8, b"\1"), pair("a", U8, b"\1"), pair("b", U8, b"\1")]),
        "the metadata entry 'b' is there twice, as number 1 and number 3",
    ),
    "value type": (
        build([pair("a", 13, bytes(8))]),
        "the value of 'a' has the unknown type 13, at byte 33",
    ),
    "element type": (
        build([pair("a", ARRAY, array(99, [bytes(8)]))]),
        "the value of 'a' has the unknown type 99, at byte 37",
    ),
    "bool": (
        build([pair("a", BOOL, b"\2")]),
        "the value of 'a' is neither true nor false but 2, at byte 37",
    ),
    "bool in an array": (
        build([pair("a", ARRAY, array(BOOL, [b"\0", b"\1", b"\xff"]))]),
        "the value of 'a' is neither true nor false but 255, at byte 51",
    ),
    "string length": (
        build([pair("a", STRING, number("Q", 2**63))]),
        f"the value of 'a' is {2**63} bytes long, and the file ends after 19, at byte 37",
    ),
    "array count": (
        build([pair("a", ARRAY, array(U64, [], 2**61))]),
        f"the value of 'a' counts {2**61} elements, and the file ends 15 bytes later, at byte 37",
    ),
    "count of strings": (
        build([pair("a", ARRAY, array(STRING, [text("x")], 10))]),
        "the value of 'a' counts 10 elements, and the file ends 15 bytes later, at byte 37",
    ),
    "string in an array": (
        build([pair("a", ARRAY, array(STRING, [text("x"), number("Q", 2**40)]))]),
        f"the value of 'a' is {2**40} bytes long, and the file ends after 30, at byte 58",
    ),
    "depth": (
        build([pair("a", ARRAY, deep(5))]),
        "the value of 'a' nests arrays more than 4 deep, at byte 85",
    ),
    "an unprintable name": (
        build([pair(b"a\n\xff'", BOOL, b"\2")]),
        r"the value of 'a\x0a\xff\x27' is neither true nor false but 2, at byte 40",
    ),
    "type of alignment": (
        build([pair("general.alignment", U64, number("Q", 32))]),
        "the value of 'general.alignment' is not an unsigned number of 32 bits",
    ),
    "alignment 0": (
        build([pair("general.alignment", U32, number("I", 0))]),
        "the value of 'general.alignment' is 0 and not a power of two from 8",
    ),
    "alignment 48": (
        build([pair("general.alignment", U32, number("I", 48))]),
        "the value of 'general.alignment' is 48 and not a power of two from 8",
    ),
    "alignment 2**31": (
        build([pair("general.alignment", U32, number("I", 2**31))], [ONE], 32),
        "tensor 'one' takes 32 bytes from offset 0 of the data, which are only 0 bytes from byte "
        "2147483648",
    ),
    "tensor name": (
        build(tensors=[entry("n" * 65, (8,))], data=32),
        "the name of a tensor is 65 bytes long instead of 1 to 64, at byte 24",
    ),
    "empty tensor name": (
        build(tensors=[entry("", (8,))], data=32),
        "the name of a tensor is 0 bytes long instead of 1 to 64, at byte 24",
    ),
    "a tensor name that cannot be printed": (
        build(tensors=[entry("naïve", (8,))], data=32),
        r"the name of a tensor, 'na\xc3\xafve', is not printable ASCII, at byte 24",
    ),
    "same tensor twice": (
        build(tensors=[ONE, entry("one", (8,), offset=32)], data=64),
        "tensor 'one' is there twice, as number 1 and number 2",
    ),
    "dimensions": (
        build(tensors=[entry("one", (1, 1, 1, 1, 1))], data=32),
        "tensor 'one' has 5 dimensions instead of at most 4, at byte 24",
    ),
    "a dimension of 0": (
        build(tensors=[entry("one", (8, 0))], data=32),
        "tensor 'one' has a dimension of 0, at byte 24",
    ),
    "product that overflows": (
        build(tensors=[entry("one", (2**32, 2**32))], data=32),
        "tensor 'one' has dimensions too large for any file, at byte 24",
    ),
    "bytes that overflow": (
        build(tensors=[entry("one", (2**62,))], data=32),
        "tensor 'one' is too large for any file, at byte 24",
    ),
    "columns of no whole blocks": (
        build(tensors=[entry("one", (48,), Q8_CODE)], data=64),
        "tensor 'one' has 48 columns, which Q8_0 cannot have: blocks are of 32, at byte 24",
    ),
    "offset not aligned": (
        build(tensors=[entry("one", (8,), offset=16)], data=64),
        "tensor 'one' is at offset 16, which is not a multiple of 32, at byte 24",
    ),
    "offset beyond the end": (
        build(tensors=[entry("one", (8,), offset=2**64 - 32)], data=64),
        f"tensor 'one' takes 32 bytes from offset {2**64 - 32} of the data, which are only 64 "
        "bytes from byte 64",
    ),
    "data cut off": (
        build(tensors=[entry("one", (9,), BF16_CODE, 32)], data=49),
        "tensor 'one' takes 18 bytes from offset 32 of the data, which are only 49 bytes from byte "
        "64",
    ),
    "unknown type beyond the end": (
        build(tensors=[entry("one", (9,), UNKNOWN_CODE, 64)], data=64),
        "tensor 'one' takes 1 bytes from offset 64 of the data, which are only 64 bytes from byte "
        "64",
    ),
    "overlap": (
        build(tensors=[entry("two", (4,), offset=32), entry("one", (9,))], data=64),
        "tensors 'one' and 'two' overlap, at byte 128",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_damage(name: str, tmp_path: Path) -> None:
    data, sentence = MALFORMED[name]
    path = write(tmp_path, data)
    with pytest.raises(native.GgufError) as caught:
        native.Gguf(path)
    assert str(caught.value) == sentence
    assert isinstance(caught.value, ValueError)
    assert not isinstance(caught.value, native.GgufUnsupported)
    with pytest.raises(ModelCorrupt) as told:
        open_gguf(path)
    assert told.value.what == f"{path} cannot be read: {sentence}"


@pytest.mark.parametrize(
    ("data", "phrase"),
    [
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian, and little-endian files alone"),
        (b"GGUF" + struct.pack("<III", 1, 0, 0), "GGUF version 1, and versions 2 and 3 are read"),
        (build(version=4), "GGUF version 4, which is newer"),
    ],
    ids=["big-endian", "version 1", "version 4"],
)
def test_other_files_are_refused_by_name(data: bytes, phrase: str, tmp_path: Path) -> None:
    path = write(tmp_path, data)
    with pytest.raises(UnsupportedModel, match=phrase):
        open_gguf(path)


def sample() -> bytes:
    pairs = [
        pair("general.architecture", STRING, text("llama")),
        pair("numbers", ARRAY, array(F32, [number("f", 1.0)] * 3)),
        pair("tokens", ARRAY, array(STRING, [text("a"), text("bc")])),
    ]
    return build(pairs, [entry("one", (3, 2)), entry("two", (32,), Q8_CODE, 32)], 32 + 34)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    """And the whole file is read."""
    whole = sample()
    assert list(open_gguf(write(tmp_path, whole)).tensors) == ["one", "two"]
    for length in range(len(whole)):
        with pytest.raises(native.GgufError):
            native.Gguf(write(tmp_path, whole[:length]))


def test_a_tensor_that_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path, sample())
    with pytest.raises(ModelCorrupt, match="there is no tensor 'three'"), reading(path):
        open_gguf(path).tensor("three")


@pytest.mark.parametrize(
    ("make", "phrase"),
    [
        (lambda folder: folder / "nowhere.gguf", "No such file or directory"),
        (lambda folder: folder, "Is a directory"),
        (lambda folder: folder / ("long" * 1000), "File name too long"),
    ],
    ids=["missing", "folder", "name"],
)
def test_files_that_cannot_be_opened(
    make: Callable[[Path], Path], phrase: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    with pytest.raises(OSError, match=phrase):
        native.Gguf(path)
    with pytest.raises(ModelNotFound, match=f"cannot be opened: {phrase}"):
        open_gguf(path)
