"""The arguments of the scripts that measure a real pair."""

from __future__ import annotations

import argparse
from pathlib import Path


def pair_parser(doc: str, max_tokens: int) -> argparse.ArgumentParser:
    """A parser of what these scripts have in common.

    Args:
        doc: The script's own text; its first line describes it.
        max_tokens: Tokens to emit where nothing is said.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-tokens", type=int, default=max_tokens)
    parser.add_argument("--output", type=Path)
    return parser
