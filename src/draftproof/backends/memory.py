"""Memory: failures to allocate it become one error, and what there is of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from draftproof.errors import OutOfMemory

GIB = 2**30


@contextmanager
def allocating(what: str, remedy: str) -> Iterator[None]:
    """Turn the runtime's allocation failures into `OutOfMemory`.

    Args:
        what: What was being done, for the message.
        remedy: What the user can do about it.
    """
    import torch

    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # PyTorch has no class for a failed allocation on the CPU, only this name in its message.
        if not (
            isinstance(error, MemoryError | torch.OutOfMemoryError)
            or "DefaultCPUAllocator" in str(error)
        ):
            raise
        raise OutOfMemory(
            f"no memory left for {what}",
            why=str(error).split("\n", 1)[0],
            remedy=remedy,
        ) from error


def available(device: Any) -> int:
    """Bytes that `device` (a torch.device) can still give."""
    import psutil
    import torch

    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return int(psutil.virtual_memory().available)


def require(needed: int, device: Any, what: str) -> None:
    """Refuse before loading what cannot fit.

    Args:
        needed: Bytes.
        device: A torch.device.
        what: What needs them, for the message.

    Raises:
        OutOfMemory: `device` has less.
    """
    require_free(
        needed,
        available(device),
        what,
        where=f" on {device}",
        remedy="choose a smaller model or a smaller dtype, or free some memory",
    )


def require_free(needed: int, there: int, what: str, *, where: str = "", remedy: str) -> None:
    """The same of memory whose free bytes are known.

    Args:
        needed: Bytes.
        there: Bytes that are free.
        what: What needs them, for the message.
        where: Which memory it is, for the message.
        remedy: What the user can do about it.

    Raises:
        OutOfMemory: Less is there than needed.
    """
    if needed > there:
        raise OutOfMemory(
            f"{what} needs {needed / GIB:.1f} GiB{where}, and {there / GIB:.1f} GiB are free",
            why="loading it would exhaust the machine's memory",
            remedy=remedy,
        )
