"""The short texts that come with the package, one of each usual kind."""

from __future__ import annotations

import json


def sample_lines() -> str:
    """JSON lines with `id` and `prompt`."""
    from importlib import resources  # a tenth of the time that importing this package takes

    return resources.files("draftproof").joinpath("data", "prompts.jsonl").read_text("utf-8")


def sample_texts() -> list[str]:
    """The texts alone."""
    return [json.loads(line)["prompt"] for line in sample_lines().splitlines()]
