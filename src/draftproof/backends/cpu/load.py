"""Loading a GGUF file, or a folder of safetensors, into the CPU engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from draftproof.backends.cpu.config import read_config, require_architecture
from draftproof.backends.cpu.gguf import GgufFile, open_gguf, reading
from draftproof.backends.cpu.model import CpuModel
from draftproof.backends.cpu.native import require_native
from draftproof.backends.cpu.processors import cores
from draftproof.backends.cpu.safetensors import Quantize, open_folder
from draftproof.backends.cpu.tokenizer import GgufTokenizer, from_folder
from draftproof.backends.memory import GIB, require_free
from draftproof.core import Float32
from draftproof.errors import (
    DraftproofError,
    InvalidSetting,
    ModelCorrupt,
    UnsupportedModel,
)
from draftproof.ports import Tokenizer

ROPE_FACTORS = "rope_freqs.weight"

# Control tokens that end a turn, beside the ones that the metadata names: a chat model may end with
# another token than the one it was trained to end documents with.
END_NAMES = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>"}
)
END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
CONTROL = 3  # the type of a control token


def load_cpu_model(
    path: str | Path,
    *,
    threads: int | None = None,
    cache_bytes: int | None = None,
    quantize: Quantize | None = None,
    coarse: bool = False,
    kernels: str | None = None,
) -> tuple[CpuModel, Tokenizer]:
    """Load a model and its tokenizer.

    Args:
        path: A `.gguf` file, or a folder with config.json and safetensors.
        threads: How many compute; by default one for each core that this process may use.
        cache_bytes: Most memory that the keys and values of all sessions together may take; by
            default half of what is free once the weights are loaded.
        quantize: Quantise a folder's matrices to 8 or 4 bits per group of 32 as they are read.
        coarse: Cut a GGUF file's matrices to 4 bits per weight where they have more. For drafts:
            another model then, and a faster one.
        kernels: "avx512", "avx2" or "portable"; by default the fastest that run here.

    Raises:
        MissingExtra: The engine was not built.
        ModelNotFound: There is no such file.
        ModelCorrupt: A file is damaged, or weights are missing from it.
        UnsupportedModel: The engine does not run the model.
        OutOfMemory: The weights do not fit.
        InvalidSetting: A setting is out of range, or has no meaning for the file.
    """
    path = Path(path).expanduser()
    native = require_native()
    _check(path, threads, cache_bytes, quantize, kernels)
    source = _folder(path, quantize) if path.is_dir() else _file(path, coarse)
    require_free(
        source.stored_bytes,
        psutil.virtual_memory().available,
        source.name,
        remedy="choose a smaller model, or free some memory",
    )
    config = read_config(source.metadata, source.vocab_size, source.name, source.rope_factors)
    tokenizer = source.tokenizer()
    try:
        with reading(path):
            engine = native.Model(
                **config.arguments,
                threads=threads or cores(),
                kernels=kernels,
                cache_bytes=cache_bytes or _default_cache(source.stored_bytes),
            )
            for name, used in source.fill(engine):
                if not used:
                    raise UnsupportedModel(
                        f"{source.name} has the weights {name}",
                        why="the CPU engine has no use for them, so that the model would not be "
                        "the one in the file",
                        remedy="run the model with --backend torch",
                    )
            engine.finish()
    except native.BadWeights as error:
        raise ModelCorrupt(
            f"{source.name}: {error}",
            why="the weights do not fit the shape that the metadata give",
            remedy="fetch the file again, or convert the model again",
        ) from error
    model = CpuModel(
        engine,
        name=source.name,
        architecture=config.architecture,
        vocab_size=source.vocab_size,
        context_length=config.context_length,
        eos=source.eos,
        coarse=coarse,
    )
    return model, tokenizer


def runs(path: str | Path) -> str | None:
    """Why the CPU engine does not run a model, as a phrase; None where it does.

    Raises:
        ModelNotFound: There is no such file.
        ModelCorrupt: It is damaged.
    """
    path = Path(path).expanduser()
    try:
        require_native()
        metadata = open_folder(path, None).metadata if path.is_dir() else open_gguf(path).metadata
        require_architecture(metadata, path.stem)
    except DraftproofError as error:
        if isinstance(error, ModelCorrupt):
            raise
        return f"{error.what}: {error.why}"
    return None


@dataclass(frozen=True, slots=True)
class Source:
    """A model on disk, as the engine takes it.

    Args:
        name: What messages call it.
        metadata: As in a GGUF file.
        vocab_size: Rows of the embedding.
        stored_bytes: Memory that the weights will take, nearly.
        eos: Token ids that end a sequence.
        rope_factors: What the rotary frequencies are divided by, or None.
        tokenizer: Builds the tokenizer.
        fill: Hands every tensor to the engine; yields its name and whether the engine took it.
    """

    name: str
    metadata: Mapping[str, Any]
    vocab_size: int
    stored_bytes: int
    eos: frozenset[int]
    rope_factors: Float32[np.ndarray, "pairs"] | None
    tokenizer: Callable[[], Tokenizer]
    fill: Callable[[Any], Iterable[tuple[str, bool]]]


def _file(path: Path, coarse: bool) -> Source:
    file = open_gguf(path)
    require_architecture(file.metadata, path.stem)

    def fill(engine: Any) -> Iterator[tuple[str, bool]]:
        for name in file.tensors:
            yield name, name == ROPE_FACTORS or engine.set_from_file(file, name, coarse)

    return Source(
        name=path.stem,
        metadata=file.metadata,
        vocab_size=_vocab_size(file, path),
        stored_bytes=path.stat().st_size,
        eos=_ends(file.metadata),
        rope_factors=_rope_factors(file, path),
        tokenizer=lambda: GgufTokenizer(file.metadata, path.stem),
        fill=fill,
    )


def _folder(path: Path, quantize: Quantize | None) -> Source:
    folder = open_folder(path, quantize)

    def fill(engine: Any) -> Iterator[tuple[str, bool]]:
        for tensor in folder.tensors:
            yield tensor.name, engine.set(*tensor)

    return Source(
        name=path.name,
        metadata=folder.metadata,
        vocab_size=folder.vocab_size,
        stored_bytes=folder.stored_bytes,
        eos=folder.eos,
        rope_factors=folder.rope_factors,
        tokenizer=lambda: from_folder(path),
        fill=fill,
    )


def _rope_factors(file: GgufFile, path: Path) -> Float32[np.ndarray, "pairs"] | None:
    """The tensor by which Llama 3 divides its frequencies.

    Raises:
        UnsupportedModel: It is not stored as F32.
    """
    if ROPE_FACTORS not in file.tensors:
        return None
    kind, _ = file.tensors[ROPE_FACTORS]
    if kind != "F32":
        raise UnsupportedModel(
            f"{path.stem} stores {ROPE_FACTORS} as {kind}",
            why="the rotary frequencies are divided by these numbers, which are read as F32 only",
            remedy="convert the model again",
        )
    with reading(path):
        return file.tensor(ROPE_FACTORS).view("<f4")


def _vocab_size(file: GgufFile, path: Path) -> int:
    _, shape = file.tensors.get("token_embd.weight", ("", ()))
    if len(shape) != 2:
        raise ModelCorrupt(
            f"{path.stem} has no matrix token_embd.weight",
            why="it gives every token its first numbers, and the size of the vocabulary",
            remedy="fetch the file again",
        )
    return int(shape[1])


def _ends(metadata: Mapping[str, Any]) -> frozenset[int]:
    """Tokens after which nothing follows."""
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    named = {int(metadata[key]) for key in END_KEYS if key in metadata}
    told = {
        index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == CONTROL and token in END_NAMES
    }
    return frozenset(index for index in named | told if 0 <= index < len(tokens))


def _check(
    path: Path,
    threads: int | None,
    cache_bytes: int | None,
    quantize: str | None,
    kernels: str | None,
) -> None:
    """Refuse settings before anything is read."""
    if threads is not None and not 1 <= threads <= 1024:
        raise InvalidSetting(
            f"{threads} threads",
            why="a pass is computed by 1 to 1024 threads",
            remedy=f"leave it out to use {cores()}, one for each core",
        )
    if cache_bytes is not None and cache_bytes < 1:
        raise InvalidSetting(
            f"a limit of {cache_bytes} bytes for keys and values",
            why="every token takes some",
            remedy="give a positive number of bytes, or leave it out",
        )
    if quantize is not None and (quantize not in ("8", "4") or not path.is_dir()):
        raise InvalidSetting(
            f"cannot quantise {path.name} to {quantize} bits",
            why="a folder's weights can be quantised to 8 or 4 bits as they are read; those of "
            "a GGUF file are kept as they are",
            remedy="leave the option out, or name a folder",
        )
    names = require_native().kernels()
    if kernels is not None and kernels not in names:
        raise InvalidSetting(
            f"no kernels {kernels!r} run on this processor",
            why="they are compiled for instructions that it does not have, or do not exist",
            remedy=f"use {', '.join(names)}",
        )


def _default_cache(weights: int) -> int:
    return max(GIB // 4, int(psutil.virtual_memory().available - weights) // 2)
