"""Which backend runs a model: the CPU engine, or PyTorch through transformers.

Nothing is imported here before a model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from draftproof.errors import InvalidSetting
from draftproof.ports import Model, Tokenizer

Backend: TypeAlias = Literal["cpu", "torch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one model runs.

    Args:
        backend: None leaves it to `choose`.
        device: PyTorch's name of a device.
        dtype: PyTorch's number format.

    Raises:
        InvalidSetting: No backend has that name, or it has no use for the rest.
    """

    backend: str | None = None
    device: str | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.backend not in (None, *get_args(Backend)):
            raise InvalidSetting(
                f"no backend is called {self.backend!r}",
                why="a backend is what computes a model's passes",
                remedy=f"use {' or '.join(get_args(Backend))}, or leave it out",
            )
        if self.backend == "cpu" and self.for_torch:
            name, value = ("dtype", self.dtype) if self.dtype else ("device", self.device)
            raise InvalidSetting(
                f"the {name} {value} was given with the backend cpu",
                why="the CPU engine computes on the processor, with the weights as the file has "
                "them",
                remedy=f"leave out the {name}, or use the backend torch",
            )

    @property
    def for_torch(self) -> bool:
        """Whether this asks for what the CPU engine does not have."""
        return self.dtype is not None or self.device not in (None, "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSettings:
    """What the CPU engine alone reads; the same for target and draft.

    Args:
        threads: How many compute; by default one for each core, until `tuning` chooses.
        cache_memory: Most bytes that a model's keys and values may take.
        quantize: Bits, 8 or 4, that a folder's weights are quantised to while they load.
    """

    threads: int | None = None
    cache_memory: int | None = None
    quantize: int | None = None

    def check(self, chosen: Sequence[tuple[Path, Backend]]) -> None:
        """Refuse settings that none of the models reads.

        Raises:
            InvalidSetting: As it says.
        """
        given = [f.name for f in fields(self) if getattr(self, f.name) is not None]
        on_cpu = [path for path, backend in chosen if backend == "cpu"]
        if given and not on_cpu:
            raise InvalidSetting(
                f"{given[0]} was given for {' and '.join(path.name for path, _ in chosen)}, "
                "on the backend torch",
                why="only the CPU engine reads it",
                remedy=f"leave out {given[0]}, or use the backend cpu",
            )
        if self.quantize is not None and not any(path.is_dir() for path in on_cpu):
            raise InvalidSetting(
                f"{' and '.join(path.name for path in on_cpu)} cannot be quantised to "
                f"{self.quantize} bits",
                why="a GGUF file's weights stay as they are; a folder's can be quantised",
                remedy="leave out quantize, or name a folder with safetensors",
            )


def choose(
    path: Path, placement: Placement, default: Backend | None, tell: Callable[[str], None]
) -> Backend:
    """The backend of a model: the one asked for, else the default where it can run the model.

    Args:
        path: A folder or a GGUF file.
        placement: What was asked for.
        default: None is the CPU engine for a GGUF file, and PyTorch for a folder.
        tell: Told, in one line, why the CPU engine does not run what it would have.

    Raises:
        ModelCorrupt: The file is damaged.
    """
    if placement.backend is not None:
        return placement.backend  # type: ignore[return-value]  # one of the two, as it checked
    if placement.for_torch or not path.exists():
        return "torch"
    if (default or ("cpu" if path.suffix == ".gguf" else "torch")) == "torch":
        return "torch"
    from draftproof.backends.cpu.load import runs

    reason = runs(path)
    if reason is None:
        return "cpu"
    tell(f"{path.name} runs on PyTorch, not on the CPU engine: {reason}")
    return "torch"


def load_on(
    backend: Backend,
    path: Path,
    placement: Placement,
    settings: CpuSettings,
    *,
    coarse: bool = False,
) -> tuple[Model, Tokenizer]:
    """Load a model and its tokenizer on a backend; settings for the other one are not read.

    `coarse` cuts the weights of a GGUF file on the CPU engine to 4 bits, which only a draft may
    have.
    """
    if backend == "torch":
        from draftproof.backends.pretrained import load_model_and_tokenizer

        return load_model_and_tokenizer(path, device=placement.device, dtype=placement.dtype)
    from draftproof.backends.cpu.load import load_cpu_model

    bits: Literal["8", "4"] | None = None
    if settings.quantize is not None and path.is_dir():
        bits = str(settings.quantize)  # type: ignore[assignment]  # refused there if it is another
    return load_cpu_model(
        path,
        threads=settings.threads,
        cache_bytes=settings.cache_memory,
        quantize=bits,
        coarse=coarse,
    )
