"""Prompts to measure with: read from a file, or the project's own.

A file holds one JSON object a line, gzipped where its name ends in `.gz`. Three forms are read:

- `{"prompt": "..."}`, which is also the form of HumanEval's file (with `task_id` as the name);
- Spec-Bench's `{"turns": ["...", ...]}`, of which the first turn is taken (`question_id`).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.errors import InvalidInput, InvalidSetting, UnsupportedModel
from draftproof.ports import Tokenizer
from draftproof.text import sample_lines

NAMES = ("id", "task_id", "question_id")  # whichever a line has names its prompt
FORM = 'one JSON object a line, with "prompt": TEXT or "turns": [TEXT, ...]'


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A text to continue or to answer, and what reports call it."""

    name: str
    text: str


def read_prompts(path: Path | None, limit: int | None = None) -> list[BenchPrompt]:
    """The prompts of a file, in its order.

    Args:
        path: A file of JSON lines, gzipped or not; None takes the prompts that come with the
            package: code, editing, copying, prose, a question, translation, summary and reasoning.
        limit: Take the first so many; None takes all.

    Raises:
        InvalidInput: The file is missing, unreadable, empty, or a line has another form.
        InvalidSetting: `limit` is below 1.
    """
    if limit is not None and limit < 1:
        raise InvalidSetting(
            f"the limit on prompts is {limit}",
            why="nothing can be measured without a prompt",
            remedy="set it to 1 or more, or leave it out to take all",
        )
    source = "the prompts of the package" if path is None else str(path)
    prompts = parse(_lines(path), source)
    if not prompts:
        raise InvalidInput(
            f"{source} holds no prompt",
            why="nothing can be measured without a prompt",
            remedy=f"give a file with {FORM}",
        )
    return prompts[:limit]


def parse(lines: Iterable[str], source: str) -> list[BenchPrompt]:
    """One prompt per line that is not blank.

    Args:
        lines: JSON texts.
        source: What error messages call the file.

    Raises:
        InvalidInput: A line has another form; its number is named.
    """
    prompts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise _ill_formed(source, number, f"it is not JSON: {error}") from error
        if not isinstance(entry, dict):
            raise _ill_formed(source, number, "it is not a JSON object")
        name = next((str(entry[key]) for key in NAMES if key in entry), f"line {number}")
        prompts.append(BenchPrompt(name, _text(entry, source, number)))
    return prompts


def encode(
    prompts: Iterable[BenchPrompt], tokenizer: Tokenizer, raw: bool
) -> list[tuple[int, ...]]:
    """Token ids of each prompt, as a user's turn in the chat template unless `raw`.

    Raises:
        InvalidSetting: The model has no chat template, and `raw` is not set.
    """
    if raw:
        return [tokenizer.encode(prompt.text) for prompt in prompts]
    try:
        return [tokenizer.chat([{"role": "user", "content": p.text}]) for p in prompts]
    except UnsupportedModel as error:
        raise InvalidSetting(
            "the prompts cannot be put in a chat template",
            why=error.what,
            remedy="measure with the prompts as they are: --raw",
        ) from error


def _lines(path: Path | None) -> list[str]:
    """The lines of a file of prompts."""
    if path is None:
        return sample_lines().splitlines()
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"the prompts {path} cannot be read",
            why=str(error) or type(error).__name__,
            remedy=f"give a UTF-8 file (gzipped only where its name ends in .gz) with {FORM}",
        ) from error
    # Not splitlines(): JSON strings may hold other separators, such as U+2028.
    return text.split("\n")


def _text(entry: dict[str, Any], source: str, number: int) -> str:
    """The prompt in one line's object."""
    text = entry.get("prompt")
    if text is None and isinstance(entry.get("turns"), list) and entry["turns"]:
        text = entry["turns"][0]
    if not isinstance(text, str):
        raise _ill_formed(source, number, 'it has neither "prompt" (a text) nor "turns" (texts)')
    if not text.strip():
        raise _ill_formed(source, number, "its prompt is empty")
    return text


def _ill_formed(source: str, number: int, why: str) -> InvalidInput:
    return InvalidInput(
        f"line {number} of {source} is not a prompt", why=why, remedy=f"give a file with {FORM}"
    )
