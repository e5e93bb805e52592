"""The documents: their examples run, their commands parse, their links and references resolve.

A fenced `python` block is executed; the blocks of one file share their names, in order. One that
needs real weights says so in a comment, `# needs: smollm2-135m`, and runs under the marker
`weights`. In a fenced `console` block every line that begins with `$ draftproof` must parse.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

import draftproof
from draftproof.cli import cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(DOCS.glob("*.md")),
]
NEEDS = "# needs: smollm2-135m"

document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """(line number, text) of every fenced block of a language."""
    text = path.read_text()
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
    return [(text[: match.start(1)].count("\n") + 1, match[1]) for match in found]


def execute(path: Path, *, weights: bool) -> dict[str, Any]:
    """Run a file's blocks in order; those that need weights only where `weights` is set."""
    names: dict[str, Any] = {"__name__": "example"}
    for line, source in blocks(path, "python"):
        if weights or NEEDS not in source:
            code = compile("\n" * (line - 1) + source, str(path), "exec")
            exec(code, names)
    return names


def with_examples(*, weights: bool) -> list[Path]:
    """The documents that have examples of the kind."""
    kinds = {path: {NEEDS in source for _, source in blocks(path, "python")} for path in DOCUMENTS}
    return [path for path, needs in kinds.items() if weights in needs]


# --- examples ---


@pytest.mark.parametrize("path", with_examples(weights=False), ids=lambda path: path.name)
def test_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    execute(path, weights=False)


@pytest.fixture(scope="module")
def parts_once() -> Callable[..., Any]:
    """Loading the weights takes longest, so that the documents share what they load."""
    return functools.cache(importlib.import_module("draftproof.load").load_parts)


@pytest.mark.weights
@pytest.mark.parametrize("path", with_examples(weights=True), ids=lambda path: path.name)
def test_examples_with_weights_run(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parts_once: Callable[..., Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.import_module("draftproof.load"), "load_parts", parts_once)
    execute(path, weights=True)


def test_there_are_examples_to_run() -> None:
    """The pattern that finds blocks finds some: README, tutorial and the two worked examples."""
    names = {path.name for path in with_examples(weights=False)}
    assert {"adding-a-drafter.md", "adding-a-backend.md", "guarantees.md", "python.md"} <= names
    assert "choosing-a-drafter.md" in names
    assert {"README.md", "tutorial.md"} <= {path.name for path in with_examples(weights=True)}


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["Recent", "GuidedRecent"])
def test_the_worked_drafter_keeps_the_contract(name: str) -> None:
    """Every test of the contract that takes any drafter, over all its parameters."""
    made = execute(DOCS / "adding-a-drafter.md", weights=False)[name]
    contract = module_at(ROOT / "tests" / "contracts" / "test_drafters.py")
    tests = [
        test
        for name, test in vars(contract).items()
        if name.startswith("test_") and "drafter" in inspect.signature(test).parameters
    ]
    assert len(tests) >= 6
    for test in tests:
        marks = getattr(test, "pytestmark", [])
        axes = [[(mark.args[0], value) for value in mark.args[1]] for mark in marks]
        for chosen in itertools.product(*axes):
            test(drafter=made(contract.VOCAB), **dict(chosen))


# --- commands ---


def commands() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}

    def walk(path: str, command: click.Command) -> None:
        found[path] = command
        for name, child in getattr(command, "commands", {}).items():
            walk(f"{path} {name}", child)

    walk("draftproof", cli)
    return found


def console_commands() -> Iterator[tuple[str, str]]:
    for path in DOCUMENTS:
        for line, text in blocks(path, "console"):
            joined = text.replace("\\\n", " ")
            for command in re.findall(r"^\$ (?:.*\| *)?draftproof (.*)$", joined, re.M):
                yield f"{path.name}:{line}", command


@pytest.mark.parametrize(("where", "command"), list(console_commands()))
def test_commands_parse(where: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command exists, its options are valid and its arguments there; nothing is executed."""
    for found in commands().values():
        monkeypatch.setattr(found, "callback", lambda *args, **kwargs: None)
    argv = list(itertools.takewhile(lambda word: word != ">", shlex.split(command)))
    cli.main(argv, prog_name="draftproof", standalone_mode=False)


def test_a_command_that_does_not_parse_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(click.NoSuchOption):
        test_commands_parse("here", "generate --tempurature 1 hello", monkeypatch)
    with pytest.raises(click.UsageError):
        test_commands_parse("here", "generate", monkeypatch)


@pytest.mark.parametrize("name", commands())
def test_the_reference_names_no_flag_that_is_not_there(name: str) -> None:
    """The other way round is in `tests/arch`: every flag is documented."""
    text = (DOCS / "cli.md").read_text()
    section = re.search(rf"^## `{re.escape(name)}`\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert section is not None
    flags = set(re.findall(r"^\| `(--[a-z-]+)", section[1], re.M))
    options = [p for p in commands()[name].params if isinstance(p, click.Option)]
    assert flags == {flag for option in options for flag in option.opts}


@pytest.mark.parametrize("name", commands())
def test_the_reference_gives_the_defaults(name: str) -> None:
    text = (DOCS / "cli.md").read_text()
    section = re.search(rf"^## `{re.escape(name)}`\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert section is not None
    rows = dict(re.findall(r"^\| `(--[a-z-]+)[^`]*` \| ([^|]*) \|", section[1], re.M))
    for option in commands()[name].params:
        if isinstance(option, click.Option) and option.show_default:
            assert rows[option.opts[0]].strip() == f"`{option.default}`", option.name


@pytest.mark.parametrize("function", [draftproof.load, draftproof.from_transformers])
def test_arguments_are_documented(function: Callable[..., Any]) -> None:
    text = (DOCS / "python.md").read_text()
    for name in inspect.signature(function).parameters:
        assert f"`{name}`" in text, name


@pytest.mark.parametrize(
    "kind", [draftproof.Generation, draftproof.Token, draftproof.Round, draftproof.Stats]
)
def test_fields_are_documented(kind: type) -> None:
    text = (DOCS / "python.md").read_text()
    section = re.search(rf"^### {kind.__name__}\n(.*?)(?=^##|\Z)", text, re.M | re.S)
    assert section is not None
    properties = [n for n, value in vars(kind).items() if isinstance(value, property)]
    for name in [*(field.name for field in fields(kind)), *properties]:
        assert f"`{name}`" in section[1], name


# --- references ---


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)}


@document
def test_links_resolve(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        goal = (path.parent / name).resolve() if name else path
        assert goal.exists(), target
        assert goal.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(goal), target


@document
def test_no_path_of_one_machine(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"(?<![\w.:/~-])/(home|root|usr|etc|opt|var|tmp|mnt|data)/", text)


@document
def test_tests_that_are_named_exist(path: Path) -> None:
    for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", path.read_text()):
        assert (ROOT / file).is_file(), file
        if name:
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.M), f"{file}::{name}"


def resolve(name: str) -> Any:
    """The object of a dotted name: the longest importable module, then attributes."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[end:], found)
    raise AssertionError(name)


def test_a_name_that_is_not_there_is_noticed() -> None:
    assert resolve("draftproof.verify.token.token").__name__ == "token"
    for name in ("draftproof.theory.nothing", "draftproof.nowhere.nothing"):
        with pytest.raises(AttributeError):
            resolve(name)


@document
def test_code_that_is_named_exists(path: Path) -> None:
    for name in re.findall(r"`(draftproof(?:\.\w+)+)(?:\([^`]*\))?`", path.read_text()):
        assert resolve(name) is not None, name
    for file in re.findall(r"`((?:src|benchmarks|docs)/[\w/.-]*\w)/?`", path.read_text()):
        assert (ROOT / file).exists(), file


def function_source(file: str, name: str) -> str:
    """The text of a test, up to the next line that begins at the margin."""
    text = (ROOT / file).read_text()
    match = re.search(rf"^def {name}\(.*?(?=^\S(?!.*->)|\Z)", text, re.M | re.S)
    assert match is not None, name
    return match[0]


def test_the_paper_is_mapped_in_rows_of_code_and_test() -> None:
    """Each row of the map names code and a test, or says that it is not implemented."""
    text = (DOCS / "paper-to-code.md").read_text()
    rows = [line for line in re.findall(r"^\| .*$", text, re.M) if "|---" not in line]
    body = [row for row in rows if not row.startswith("| Where ")]
    assert len(body) > 30
    for row in body:
        has_both = "`draftproof." in row and "`tests/" in row
        assert has_both or "not implemented" in row or "not repeated" in row, row
        if has_both:
            tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
            sources = "".join(function_source(*test) for test in tests)
            for name in re.findall(r"`draftproof\.theory\.(\w+)`", row):
                assert not tests[0][0].startswith("tests/theory") or name in sources, row


# --- dependencies ---


def declared() -> dict[str, set[str]]:
    """Names of the dependencies by extra; those of the base install under ""."""
    text = (ROOT / "pyproject.toml").read_text()
    build = re.search(r"^requires = \[(.*?)\]$", text, re.M)
    base = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.M | re.S)
    extras = re.search(r"^\[project.optional-dependencies\]\n(.*?)^\[", text, re.M | re.S)
    assert build is not None
    assert base is not None
    assert extras is not None
    in_lines = "".join(f"  {name.strip()},\n" for name in build[1].split(","))
    lists = [
        ("build", in_lines),
        ("", base[1]),
        *re.findall(r"^(\w+) = \[\n(.*?)^\]", extras[1], re.M | re.S),
    ]
    return {
        extra: set(re.findall(r'^  "([A-Za-z0-9_.-]+?)[<>=~!]', body, re.M))
        for extra, body in lists
    }


def test_dependencies_are_documented_and_no_others() -> None:
    text = (DOCS / "dependencies.md").read_text()
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    titles = {
        "": "Base install",
        "build": "To build",
        "torch": "Extra `torch`",
        "dev": "Extra `dev`",
    }
    assert declared().keys() == titles.keys()
    for extra, names in declared().items():
        assert names
        documented = set(re.findall(r"^\| `([\w.-]+)` \|", sections[titles[extra]], re.M))
        assert documented == names, extra


@pytest.mark.parametrize("name", sorted(declared()[""]))
def test_base_dependencies_are_used(name: str) -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert re.search(rf"^\s*(import|from) {name}\b", sources, re.M)


def test_the_map_of_the_repository_is_complete() -> None:
    """Every package of the source has its line in CONTRIBUTING, and no line is out of date."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    mapped = set(re.findall(r"^\| `(src/draftproof/[\w.]+)/?` \|", text, re.M))
    there = {
        f"src/draftproof/{path.name}"
        for path in (ROOT / "src" / "draftproof").iterdir()
        if not path.name.startswith("_") and path.name != "py.typed"
    }
    assert mapped == there


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {draftproof.__version__}\n" in text
    changed = re.search(
        rf"^## {re.escape(draftproof.__version__)} \(([\d-]+)\)",
        (ROOT / "CHANGELOG.md").read_text(),
        re.M,
    )
    assert changed is not None
    assert f"\ndate-released: {changed[1]}\n" in text
