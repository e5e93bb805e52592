"""The optional runtime: whether it is installed, and keeping it quiet while it loads."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from draftproof.errors import MissingExtra


def require_runtime(*more: str) -> None:
    """Import torch, transformers and the packages named.

    Raises:
        MissingExtra: One of them is not installed.
    """
    for package in ("torch", "transformers", *more):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtra(
                f"{package} cannot be imported ({error})",
                why="models run on it",
                remedy="pip install 'draftproof[torch]'",
            ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, log lines or warnings of transformers; everything is restored after."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers import modeling_gguf_pytorch_utils as gguf_reader
    from transformers.utils import logging

    bar = gguf_reader.tqdm  # this reader asks no setting before it draws its bar
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_bars = not are_progress_bars_disabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    gguf_reader.tqdm = partial(bar, disable=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        gguf_reader.tqdm = bar
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
        if hub_bars:
            enable_progress_bars()
        else:
            disable_progress_bars()
