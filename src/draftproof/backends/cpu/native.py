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
        import draftproof._native as native
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "this installation of draftproof is without the CPU engine",
            why="it is compiled when draftproof is installed, and left out where no compiler for "
            "C++17 is found or the build fails",
            remedy="install a compiler for C++17 and draftproof again (`pip install -v` shows the "
            "build), or use PyTorch: pip install 'draftproof[torch]', then --backend torch",
        ) from error
    except ImportError as error:
        raise MissingExtra(
            f"the CPU engine cannot be loaded: {error}",
            why="it was compiled for another system than this one",
            remedy="install draftproof again on this machine",
        ) from error
    return native
