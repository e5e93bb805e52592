"""What is known of the machine, the runtime and a loaded model: for reports, and to tell costs."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from draftproof.errors import MissingExtra
from draftproof.ports import Model, Reporting

FIELDS = ("backend", "device", "dtype", "kernels", "threads")


def cpu_name() -> str | None:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None) or platform.processor() or None


def runtime_info() -> dict[str, Any]:
    """PyTorch's threads, its kernels for this processor, and the CUDA devices it sees.

    Returns:
        All None where nothing was computed with PyTorch: it is not imported for the report.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return {"threads": None, "cpu_capability": None, "cuda": None, "cuda_devices": None}
    cuda = torch.cuda.is_available()
    count = torch.cuda.device_count() if cuda else 0
    return {
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "cuda_devices": [torch.cuda.get_device_name(i) for i in range(count)],
    }


def model_info(model: Model) -> dict[str, object]:
    """What runs a model, where and how; None for what it does not say."""
    told = model.info() if isinstance(model, Reporting) else {"backend": type(model).__name__}
    return {**dict.fromkeys(FIELDS), **told}


def engines() -> list[str]:
    """What models run on here, a line for each backend; PyTorch is not imported for it."""
    try:
        torch = f"PyTorch: {version('torch')}"
    except PackageNotFoundError:
        torch = "PyTorch: not installed; pip install 'draftproof[torch]'"
    return [_cpu_engine(), torch]


def _cpu_engine() -> str:
    from draftproof.backends.cpu.native import require_native
    from draftproof.backends.cpu.processors import cores

    try:
        kernels = require_native().kernels()[0]
    except MissingExtra as error:
        return f"CPU engine: none; {error.what}. To have it: {error.remedy}"
    slow = ", as the processor has no instructions that faster ones are written for"
    return (
        f"CPU engine: {kernels} kernels{slow if kernels == 'portable' else ''}; threads: {cores()}"
    )
