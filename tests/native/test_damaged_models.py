"""Whole models in damaged files: each loads and scores, or is refused with a remedy.

Any other outcome is a fault: another exception, a crash, or memory that the file does not call for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_models import (
    ARCHITECTURES,
    KINDS,
    Typed,
    count,
    integers,
    metadata_of,
    real,
    string,
    strings,
    tensors_of,
    write_model,
)

from draftproof.errors import DraftproofError

pytest.importorskip(
    "draftproof._native", reason="the CPU engine was not built", exc_type=ImportError
)

TYPES = gguf.GGMLQuantizationType
ROOM = 2**31  # bytes that a process may take beyond what it has; the files have some 100 kB

HOSTILE: Mapping[str, Typed | None] = {
    "missing": None,
    "0": count(0),
    "1": count(1),
    "3": count(3),
    "-1": Typed(KINDS.INT32, -1),
    "65536": count(65536),
    "2^31 - 1": count(2**31 - 1),
    "2^63": Typed(KINDS.UINT64, 2**63),
    "0.5": real(0.5),
    "-2.0": real(-2.0),
    "1e30": real(1e30),
    "1e300": Typed(KINDS.FLOAT64, 1e300),
    "1e-300": Typed(KINDS.FLOAT64, 1e-300),
    "nan": real(math.nan),
    "inf": real(math.inf),
    "true": Typed(KINDS.BOOL, True),
    "empty string": string(""),
    "string": string("none\0{{"),
    "empty": integers(),
    "numbers": integers(2, 2),
    "different numbers": integers(1, 2, 3),
    "bools": Typed(KINDS.ARRAY, [True, False], KINDS.BOOL),
    "strings": strings("a", "b b", ""),
    "reals": Typed(KINDS.ARRAY, [math.nan, -1.0], KINDS.FLOAT32),
}
# Keys that the engine reads but that a file need not hold.
OPTIONAL = (
    "expert_count",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "attention.causal",
    "attention.scale",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "logit_scale",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
)


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """A limit on memory, so that a size taken from a file on trust is noticed, not granted."""
    resource = pytest.importorskip("resource", reason="no limits on memory on this system")
    if not Path("/proc/self/statm").exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def outcome(path: Path) -> str:
    """What came of loading the model and using it: "ok", or the name of a `DraftproofError`."""
    from draftproof.backends.cpu.load import load_cpu_model

    try:
        model, tokenizer = load_cpu_model(path, threads=1, cache_bytes=2**24)
        ids = [token for token in tokenizer.encode("ab ab é") if token < model.vocab_size]
        session = model.open(tuple(ids[:4]) or (0,))
        assert session.score(session.prefix, 1).shape == (1, model.vocab_size)
        tokenizer.decode(ids)
        tokenizer.chat([{"role": "user", "content": "a"}])
    except DraftproofError as error:
        return type(error).__name__
    return "ok"


def faults(cases: Mapping[str, Any], path: Path, write: Any) -> Counter[str]:
    """Try every case; fails with all that end in anything but success or a refusal."""
    wrong, seen = [], Counter[str]()
    for name, case in cases.items():
        write(case)
        try:
            seen[outcome(path)] += 1
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}".split("\n", 1)[0])
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)
    return seen


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_whole_models_load(architecture: str, tmp_path: Path) -> None:
    """Control: what the others damage."""
    path = write_model(tmp_path / "m.gguf", metadata_of(architecture), tensors_of(architecture))
    assert outcome(path) == "ok"


def keys_of(architecture: str) -> set[str]:
    """Keys to damage, the architecture's name left out of them: those that no earlier one has."""
    earlier = ARCHITECTURES[: ARCHITECTURES.index(architecture)]
    keys = {*metadata_of(architecture), *(f"{architecture}.{key}" for key in OPTIONAL)}
    known = set().union(*map(keys_of, earlier))
    if architecture == "gemma3":  # the other kind of tokenizer
        known = {key for key in known if not key.startswith("tokenizer")}
    return {key.removeprefix(f"{architecture}.") for key in keys} - known


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hostile_metadata(architecture: str, tmp_path: Path) -> None:
    """Every key in turn with every kind of wrong value, and sizes that agree but are absurd."""
    whole, tensors = metadata_of(architecture), tensors_of(architecture)
    cases = {"unchanged": whole}
    for short in sorted(keys_of(architecture)):
        key = short if short in whole else f"{architecture}.{short}"
        rest = {other: typed for other, typed in whole.items() if other != key}
        cases |= {
            f"{key} = {name}": rest if value is None else {**rest, key: value}
            for name, value in HOSTILE.items()
        }
    for size in (2**12, 2**16, 2**30):
        heads = [f"{architecture}.attention.{name}_length" for name in ("key", "value")]
        turning = f"{architecture}.rope.dimension_count"
        cases[f"heads of {size}"] = {**whole, **dict.fromkeys([*heads, turning], count(size))}
    path = tmp_path / "m.gguf"
    seen = faults(cases, path, lambda metadata: write_model(path, metadata, tensors))
    assert seen["ok"] > 0
    assert seen["ModelCorrupt"] > 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_wrong_tensors(architecture: str, tmp_path: Path) -> None:
    """Every tensor but the later layers' in turn missing, of another shape, or of another type."""
    whole = tensors_of(architecture)
    changed: dict[str, Any] = {}
    for name, tensor in whole.items():
        if name.startswith("blk.1."):
            continue
        rest = {other: data for other, data in whole.items() if other != name}
        wide = np.ones((*tensor.shape[:-1], 512), np.uint8)
        changed |= {
            f"{name} missing": rest,
            f"{name} doubled": {**rest, name: np.concatenate([tensor, tensor])},
            f"{name} flat": {**rest, name: tensor.reshape(-1)},
            f"{name} transposed": {**rest, name: np.ascontiguousarray(tensor.T)},
            f"{name} of three dimensions": {**rest, name: tensor[None, None]},
            f"{name} of one weight": {**rest, name: tensor.reshape(-1)[:1]},
            f"{name} as F16": {**rest, name: tensor.astype(np.float16)},
            f"{name} as Q8_0": {**rest, name: (wide[..., :34], TYPES.Q8_0)},
            f"{name} as Q4_K": {**rest, name: (wide[..., :144], TYPES.Q4_K)},
            f"{name} as I32": {**rest, name: tensor.astype(np.int32)},
            f"{name} as IQ4_NL": {**rest, name: (wide[..., :18], TYPES.IQ4_NL)},
            f"{name} nan": {**rest, name: tensor * np.float32(np.nan)},
            f"{name} beside a stranger": {**whole, f"{name}.x": tensor},
        }
    path = tmp_path / "m.gguf"
    metadata = metadata_of(architecture)
    seen = faults(changed, path, lambda tensors: write_model(path, metadata, tensors))
    assert seen["ok"] > 0
    assert seen["ModelCorrupt"] > 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_flipped_bytes(architecture: str, tmp_path: Path) -> None:
    """One to four random bytes of the metadata and the tensors' entries."""
    path = write_model(tmp_path / "m.gguf", metadata_of(architecture), tensors_of(architecture))
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    header = len(whole) - sum(tensor.nbytes for tensor in tensors_of(architecture).values())
    random = np.random.default_rng(1)
    cases = {}
    for case in range(300):
        damaged = whole.copy()
        at = random.integers(0, header, random.integers(1, 5))
        damaged[at] = random.integers(0, 256, at.size)
        cases[f"case {case}, bytes {at}"] = damaged
    seen = faults(cases, path, lambda data: path.write_bytes(data.tobytes()))
    assert seen["ok"] > 0
    assert seen["ModelCorrupt"] > 0
