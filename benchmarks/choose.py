"""Files of prompts for `bench speed`, chosen by a rule that can be stated.

    python benchmarks/choose.py spec     --each 10 benchmarks/data/spec-10.jsonl
    python benchmarks/choose.py tasks    --each 60 benchmarks/data/humaneval-60.jsonl
    python benchmarks/choose.py copying  --each 10 benchmarks/data/copying.jsonl

`spec` takes the first prompts of each of Spec-Bench's six subtasks, `tasks` HumanEval's tasks at
even distances, and `copying` work whose answers repeat the prompt: modules of Python's own library
to be rewritten with type hints (the first 100 lines), Spec-Bench's summarization and rag.
"""

from __future__ import annotations

import argparse
import gzip
import inspect
import json
from importlib import import_module
from pathlib import Path
from typing import Any

SUBTASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")
OTHERS = "mt_bench"  # all other categories
MODULES = ("bisect", "heapq", "textwrap", "colorsys", "fnmatch", "shlex", "stat", "sched")
LINES = 100
HINTS = "Rewrite this module with type hints. Change nothing else and print all of it.\n\n"


def spec_bench(data: Path) -> dict[str, list[dict[str, Any]]]:
    """Spec-Bench's lines by subtask."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in (OTHERS, *SUBTASKS)}
    with (data / "spec_bench.jsonl").open(encoding="utf-8") as file:
        for line in map(json.loads, file):
            found[line["category"] if line["category"] in SUBTASKS else OTHERS].append(line)
    return found


def named(subtask: str, line: dict[str, Any]) -> dict[str, str]:
    return {"id": f"{subtask}/{line['question_id']}", "prompt": line["turns"][0]}


def spec(data: Path, each: int) -> list[dict[str, str]]:
    """`mt_bench` is spread over its eight categories."""
    chosen = []
    for subtask, lines in spec_bench(data).items():
        step = len(lines) // each if subtask == OTHERS else 1
        chosen += [named(subtask, line) for line in lines[::step][:each]]
    return chosen


def spread(lines: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """So many of the lines, at even distances."""
    return [lines[i * len(lines) // count] for i in range(count)]


def tasks(data: Path, each: int) -> list[dict[str, str]]:
    with gzip.open(data / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = list(map(json.loads, file))
    return [{"id": line["task_id"], "prompt": line["prompt"]} for line in spread(lines, each)]


def copying(data: Path, each: int) -> list[dict[str, str]]:
    found = spec_bench(data)
    modules = []
    for name in MODULES[:each]:
        lines = inspect.getsource(import_module(name)).splitlines()[:LINES]
        modules.append({"id": f"rewriting/{name}", "prompt": HINTS + "\n".join(lines)})
    others = [named(kind, x) for kind in ("summarization", "rag") for x in found[kind][:each]]
    return modules + others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rule", choices=("spec", "tasks", "copying"))
    parser.add_argument("output", type=Path)
    parser.add_argument("--each", type=int, default=10, help="prompts of a subtask, or tasks")
    parser.add_argument("--data", type=Path, default=Path("benchmarks", "data"))
    given = parser.parse_args()
    rule = {"spec": spec, "tasks": tasks, "copying": copying}[given.rule]
    lines = [json.dumps(prompt, ensure_ascii=False) for prompt in rule(given.data, given.each)]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} prompts in {given.output}")


if __name__ == "__main__":
    main()
