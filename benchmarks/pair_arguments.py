"""What the scripts that measure a real pair have in common: their arguments and their results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from draftproof.bench.provenance import provenance, write_result
from draftproof.ports import Model


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


def publish(
    name: str, given: argparse.Namespace, told: dict[str, Any], **models: Model | None
) -> None:
    """Write what a script has measured, with where it comes from, and print it.

    Args:
        name: The result's.
        given: The script's arguments.
        told: What was measured.
        models: That were loaded: `target`, and `draft` where it was one.
    """
    result = {
        "target": given.target,
        "draft": given.draft,
        "max_tokens": given.max_tokens,
        **told,
        "provenance": provenance({"target": given.target, "draft": given.draft}, models),
    }
    write_result(name, result, given.output)
    print(json.dumps(result))
