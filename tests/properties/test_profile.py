"""What is kept of a pair between processes is used at once, and never a reason to fail."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FakeClock, FakeModel

from draftproof.core import Guess, Limits, Prompt, Round
from draftproof.drafters import DraftModel
from draftproof.engine import Request, Running, decode
from draftproof.planner import (
    Auto,
    CostCurve,
    Costs,
    Measured,
    PairKey,
    ProfileFile,
    forget,
    measure_costs,
)
from draftproof.planner import kept as kept_module
from draftproof.planner import measured as measured_module
from draftproof.planner.length import AutoPolicy
from draftproof.planner.measured import SAVE_EVERY
from draftproof.planner.profile import Profile
from draftproof.planner.running import Corrections, Experience, Taught
from draftproof.sampling import Sampling

KEY = PairKey("target", "draft", "mix", {"processor": "fast", "threads": 2})
COSTS = Costs(CostCurve.of_samples((1, 2, 4), ((1.0, 1.1, 1.5), (1.2, 1.2, 1.4))), (0.1, 0.2))


def taught(rounds: int = 30) -> Taught:
    """What a request of one half of accepted tokens leaves, and tokens of a second source."""
    auto = Auto(COSTS)
    experience = Experience(auto.acceptance, auto.weight)
    policy = AutoPolicy(auto, experience)
    rng = np.random.default_rng(1)
    for _ in range(rounds):
        guide = policy.guide(branching=False)
        guesses = []
        for source in ("draft", "suffix"):
            if guide.value(source, None if source == "draft" else 0.6) > 0:
                guide.take(source, 0.8)
                kept = bool(rng.random() < 0.5) and all(g.kept for g in guesses)
                guesses.append(Guess(1, len(guesses) - 1, source, 0.5, 0.5, kept))
        kept = sum(guess.kept for guess in guesses)
        n = len(guesses)
        policy.observe(Round(n, kept, kept + 1, 0.2 * n, 1.5, 0.1, guesses=tuple(guesses)))
    known = experience.taught
    assert known is not None
    return known


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    profile = Profile(COSTS, taught())
    assert profile.taught is not None
    assert profile.taught.tried
    assert set(profile.taught.beliefs) == {"draft", "suffix"}
    ProfileFile(tmp_path / "new" / "folder", KEY).write(profile)
    assert ProfileFile(tmp_path / "new" / "folder", KEY).read() == profile
    fresh = Profile(COSTS)
    ProfileFile(tmp_path, KEY).write(fresh)
    assert ProfileFile(tmp_path, KEY).read() == fresh


def test_an_experience_goes_on_where_it_was() -> None:
    known = taught()
    again = Experience(0.7, 4.0, known)
    assert again.taught == known
    assert again.acceptance == pytest.approx(known.accepted / (known.accepted + known.rejected))
    assert again.corrections == known.corrections


@pytest.mark.parametrize(
    "other",
    [
        {"target": "other"},
        {"draft": ""},
        {"drafter": "model"},
        {"machine": {"processor": "fast", "threads": 4}},
    ],
)
def test_another_pair_or_machine_has_a_profile_of_its_own(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    ProfileFile(tmp_path, KEY).write(Profile(COSTS))
    assert ProfileFile(tmp_path, replace(KEY, **other)).read() is None


def document() -> dict[str, Any]:
    """What `write` writes, to be spoilt."""
    key = {"target": "target", "draft": "draft", "drafter": "mix", "machine": dict(KEY.machine)}
    return json.loads(json.dumps({"format": 1, "key": key, **asdict(Profile(COSTS, taught()))}))


def put(path: Path, found: object) -> None:
    path.write_text(found if isinstance(found, str) else json.dumps(found))


SPOILT: dict[str, Callable[[dict[str, Any]], object]] = {
    "empty": lambda d: "",
    "cut off": lambda d: json.dumps(d)[:-20],
    "not an object": lambda d: [1, 2],
    "deep": lambda d: "[" * 100_000,
    "huge": lambda d: json.dumps({**d, "more": "x" * 2**18}),
    "older format": lambda d: {**d, "format": 0},
    "another key": lambda d: {**d, "key": {**d["key"], "target": "other"}},
    "no costs": lambda d: {**d, "costs": None},
    "a time of zero": lambda d: _set(d, 0.0, "costs", "curve", "seconds", 0),
    "a sample of zero": lambda d: _set(d, 0.0, "costs", "curve", "samples", 0, 0),
    "a short sample": lambda d: _set(d, [1.0], "costs", "curve", "samples", 0),
    "sizes that fall": lambda d: _set(d, [1, 4, 2], "costs", "curve", "sizes"),
    "a negative draft": lambda d: _set(d, [-0.1], "costs", "draft_samples"),
    "text for a number": lambda d: _set(d, "soon", "costs", "curve", "seconds", 1),
    "not a number": lambda d: _set(d, float("nan"), "taught", "accepted"),
    "without end": lambda d: _set(d, float("inf"), "taught", "corrections", "all"),
    "a wild correction": lambda d: _set(d, 900.0, "taught", "corrections", "draft"),
    "no acceptance": lambda d: _set(_set(d, 0, "taught", "accepted"), 0, "taught", "rejected"),
    "a bin too few": lambda d: _set(d, [[0, 0]], "taught", "beliefs", "draft"),
    "more kept than judged": lambda d: _set(d, [2, 1], "taught", "beliefs", "draft", 0),
    "no beliefs": lambda d: _set(d, None, "taught", "beliefs"),
}


def _set(found: dict[str, Any], value: object, *way: Any) -> dict[str, Any]:
    place: Any = found
    for step in way[:-1]:
        place = place[step]
    place[way[-1]] = value
    return found


def test_the_control_of_what_is_spoilt(tmp_path: Path) -> None:
    file = ProfileFile(tmp_path, KEY)
    put(file.path, document())
    assert file.read() == Profile(COSTS, taught())


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_file_is_no_file(tmp_path: Path, kind: str) -> None:
    file = ProfileFile(tmp_path, KEY)
    put(file.path, SPOILT[kind](document()))
    assert file.read() is None
    file.write(Profile(COSTS))
    assert file.read() == Profile(COSTS)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = ProfileFile(tmp_path / "file" / "below", KEY)
    file.write(Profile(COSTS))
    assert file.read() is None


def test_the_oldest_go_where_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "MOST_FILES", 3)
    files = [ProfileFile(tmp_path, replace(KEY, target=str(i))) for i in range(5)]
    for age, file in enumerate(files):
        file.write(Profile(COSTS))
        os.utime(file.path, (age, age))
    assert [file.read() is not None for file in files] == [False, False, True, True, True]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_model_is_forgotten_as_target_and_as_draft(tmp_path: Path) -> None:
    keys = [KEY, replace(KEY, target="draft", draft=""), replace(KEY, draft="other")]
    files = [ProfileFile(tmp_path, key) for key in keys]
    for file in files:
        file.write(Profile(COSTS))
    (tmp_path / "foreign.json").write_text("[]")
    assert forget(tmp_path, "draft") == 2
    assert [file.read() is not None for file in files] == [False, False, True]
    assert (tmp_path / "foreign.json").exists()
    assert forget(tmp_path / "missing", "draft") == 0


# --- in use ---


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Prompt]]:
    """How often costs are measured."""
    asked: list[Prompt] = []

    def known(target: Any, drafter: Any, prompt: Prompt, **settings: Any) -> Costs:
        asked.append(prompt)
        return COSTS

    with monkeypatch.context() as patch:
        patch.setattr(measured_module, "measure_costs", known)
        yield asked


def lengths(folder: Path, clock: FakeClock) -> tuple[Measured, FakeModel, DraftModel]:
    target = FakeModel(8, seed=1)
    drafter = DraftModel(FakeModel(8, near=target, distance=0.2), 8)
    file = ProfileFile(folder, KEY)
    return Measured(target, drafter, profile=file, clock=clock), target, drafter


def generate(made: tuple[Measured, FakeModel, DraftModel], **request: Any) -> None:
    measured, target, drafter = made
    limits = Limits(12)
    running = Running(
        Request(prompt=(1, 2, 3), sampling=Sampling(), limits=limits, **request),
        target, None, drafter, measured,
    )  # fmt: skip
    for _ in decode([running]):
        pass


def test_costs_are_measured_once_for_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what the first request taught is where the next process begins."""
    with counting(monkeypatch) as asked:
        first = lengths(tmp_path, FakeClock())
        generate(first)
        kept = ProfileFile(tmp_path, KEY).read()
        assert kept is not None
        assert kept.costs == COSTS
        assert kept.taught is not None
        again = lengths(tmp_path, FakeClock())[0].begin((1, 2))
        assert isinstance(again, AutoPolicy)
        rate = kept.taught.accepted / (kept.taught.accepted + kept.taught.rejected)
        assert again.acceptance == pytest.approx(rate)
        assert len(asked) == 1


def test_it_is_kept_at_most_every_few_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, file = FakeClock(), ProfileFile(tmp_path, KEY)
    with counting(monkeypatch):
        made = lengths(tmp_path, clock)
        generate(made)
        first = file.read()
        clock.advance(SAVE_EVERY / 2)
        generate(made)
        assert file.read() == first
        clock.advance(SAVE_EVERY)
        generate(made)
        assert file.read() != first


def test_reproducible_requests_read_and_keep_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counting(monkeypatch) as asked:
        generate(lengths(tmp_path, FakeClock()), seed=1, rule="block")
    assert asked == []
    assert list(tmp_path.iterdir()) == []


def test_what_was_taught_for_other_lengths_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ProfileFile(tmp_path, KEY)
    short = Corrections(0.5, 0.0, (0.0,) * 3, 0.5)
    file.write(Profile(COSTS, replace(taught(), corrections=short)))
    with counting(monkeypatch) as asked:
        policy = lengths(tmp_path, FakeClock())[0].begin((1, 2))
    assert asked == []
    assert isinstance(policy, AutoPolicy)
    assert policy.acceptance == pytest.approx(0.7)


def test_measuring_takes_under_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a target of 40 ms a pass, half as much again for 8 tokens, and a draft of half of that."""
    clock = FakeClock()
    target = FakeModel(8, seed=1, clock=clock, seconds=lambda n: 0.04 + 0.0025 * n)
    draft = FakeModel(8, seed=2, clock=clock, seconds=lambda n: 0.02 + 0.001 * n)
    monkeypatch.setattr(measured_module, "measure_costs", partial(measure_costs, clock=clock))
    Measured(target, DraftModel(draft, 8)).begin(tuple(range(8)) * 50)
    assert 0.2 < clock.now < 1.0
