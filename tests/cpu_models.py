"""What tests of the CPU engine share: its models behind the ports, and comparing bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from mixed_models import VOCAB

from draftproof.backends.cpu.model import CpuModel


def cpu_model(engine: Any, context: int = 4096, vocab: int = VOCAB) -> CpuModel:
    """An engine of `mixed_models` as a `Model`."""
    return CpuModel(
        engine,
        name="tiny",
        architecture="llama",
        vocab_size=vocab,
        context_length=context,
        eos=frozenset(),
    )


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether all bits are."""
    return a.shape == b.shape and bool((a.view(np.uint32) == b.view(np.uint32)).all())
