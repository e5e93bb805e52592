"""What is known of the runtime and of a loaded model, for reports."""

from __future__ import annotations

from typing import Any

from draftproof.ports import Model


def runtime_info() -> dict[str, Any]:
    """PyTorch's threads, its kernels for this processor, and the CUDA devices it sees.

    Returns:
        All None where PyTorch is not installed.
    """
    try:
        import torch
    except ImportError:
        return {"threads": None, "cpu_capability": None, "cuda": None, "cuda_devices": None}
    cuda = torch.cuda.is_available()
    count = torch.cuda.device_count() if cuda else 0
    return {
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "cuda_devices": [torch.cuda.get_device_name(i) for i in range(count)],
    }


def model_info(model: Model) -> dict[str, str | None]:
    """What runs a model, where, and in which number format; None where it does not say."""
    loaded = getattr(model, "model", None)
    if loaded is None:
        return {"backend": type(model).__name__, "device": None, "dtype": None}
    return {
        "backend": "transformers",
        "device": str(loaded.device),
        "dtype": str(loaded.dtype).removeprefix("torch."),
    }
