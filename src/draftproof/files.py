"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` once all is written.

    Raises:
        OSError: It cannot be written; `path` is as it was.
    """
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(beside, 0o644)  # mkstemp's files are for their owner alone
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
