"""The compiled module, and what to say where it is missing."""

from __future__ import annotations

from types import ModuleType

from draftproof.errors import MissingExtra


def require_native() -> ModuleType:
    """The CPU engine's compiled module, `draftproof._native`.

    Raises:
        MissingExtra: It was not built when draftproof was installed, or cannot be loaded.
    """
    try:
        from draftproof import _native
    except ImportError as error:
        raise MissingExtra(
            f"the CPU engine cannot be loaded ({error})",
            why="it is compiled when draftproof is installed, and left out where no compiler for "
            "C++17 is found or the build fails",
            remedy="install such a compiler and reinstall (`pip install -v` shows the build), or "
            "run the model with PyTorch: pip install 'draftproof[torch]', then --backend torch",
        ) from error
    return _native
