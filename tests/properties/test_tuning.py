"""What is measured at load: threads, the draft's head and costs, in time and whatever the noise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from fakes import FakeClock, FakeModel, FakeTokenizer

from draftproof import tuning as tuning_module
from draftproof.core import Prompt
from draftproof.drafters import DraftModel, SuffixDrafter
from draftproof.errors import OutOfMemory
from draftproof.load import Parts, compose
from draftproof.planner import (
    Measured,
    best_head,
    best_threads,
    early_costs,
    early_curve,
    measure_costs,
    measure_heads,
    measure_threads,
)
from draftproof.planner import measured as measured_module
from draftproof.planner.heads import CLOSE, HeadCost
from draftproof.planner.threads import CLEARLY
from draftproof.ports import Narrowing, Threaded, Threads
from draftproof.tuning import Tuning

CORES, ALL, PINNED = Threads(2), Threads(4), Threads(2, pinned=True)
CHOICES = (CORES, ALL, PINNED)
VOCAB = 2**17


class Tunable(FakeModel):
    """A model with threads to choose from and a head to cut; `seconds(n)` for the usual threads.

    Args:
        speed: What each choice of threads takes of the usual one's time.
        head: The share of a pass that the whole head takes.
    """

    def __init__(
        self,
        vocab: int,
        clock: FakeClock,
        seconds: Callable[[int], float],
        *,
        speed: dict[Threads, float] | None = None,
        head: float = 0.4,
    ) -> None:
        super().__init__(vocab, order=1, clock=clock, seconds=seconds)
        self.speed = dict.fromkeys(CHOICES, 1.0) | (speed or {})
        self.time, self.per_pass, self.head = clock, seconds, head
        self.threads = CORES
        self.narrowed: list[int] = []

    def use_threads(self, threads: Threads) -> None:
        self.threads = threads

    def choices(self) -> tuple[Threads, ...]:
        return CHOICES

    def trial(self, threads: Threads) -> FakeModel:
        """A ninth of it."""
        share = self.speed[threads] / 9
        return FakeModel(64, clock=self.time, seconds=lambda n: share * self.per_pass(n))

    def narrow(self, ids: Sequence[int]) -> tuple[FakeModel, np.ndarray]:
        self.narrowed.append(len(ids))
        share = 1 - self.head * (1 - 16 * len(ids) / self.vocab)
        small = FakeModel(64, clock=self.time, seconds=lambda n: share * self.per_pass(n))
        return small, np.arange(8)


def real_pair(clock: FakeClock, **settings: Any) -> tuple[Tunable, Tunable]:
    """The times of a target of 1.5e9 weights and a draft of 0.5e9, whose logits are of 8 tokens."""
    target = Tunable(8, clock, lambda n: 0.045 + 0.0014 * (n - 1), **settings)
    draft = Tunable(8, clock, lambda n: 0.011 + 0.0005 * (n - 1), **settings)
    return target, draft


# --- threads ---


def test_threads_that_are_clearly_faster_are_chosen() -> None:
    clock = FakeClock()
    target, _ = real_pair(clock, speed={ALL: 1.3, PINNED: CLEARLY - 0.01})
    samples = measure_threads(target, (1, 2, 3), clock)
    assert best_threads(CHOICES, samples) == PINNED
    assert clock.now < 0.3
    target, _ = real_pair(clock, speed={ALL: 0.8, PINNED: 0.9})
    assert best_threads(CHOICES, measure_threads(target, (1, 2, 3), clock)) == ALL
    target, _ = real_pair(clock, speed={ALL: CLEARLY + 0.01, PINNED: CLEARLY + 0.01})
    assert best_threads(CHOICES, measure_threads(target, (1, 2, 3), clock)) == CORES
    assert target.threads == CORES
    assert target.open_sessions == 0


def test_too_few_repeats_choose_nothing() -> None:
    fast = [1.0, 0.5, 1.0]
    assert best_threads(CHOICES, [fast] * 2) == CORES
    assert best_threads(CHOICES, [fast] * 3) == ALL


def test_a_slow_model_is_measured_in_time() -> None:
    clock = FakeClock()
    measure_threads(Tunable(8, clock, lambda n: 0.5), (1, 2), clock)
    assert clock.now == pytest.approx(2 * 2 * 3 * 0.5 / 9)  # once to warm up, and once


def chosen(rng: np.random.Generator, ratio: float, rule: Callable[..., Threads]) -> bool:
    """Whether the second choice, which takes `ratio` of the first one's time, wins.

    Each time is off by a tenth (log-normal), and one in ten meets other work and takes half more.
    """
    noise = np.exp(0.1 * rng.standard_normal((7, 2))) * (1 + 0.5 * (rng.random((7, 2)) < 0.1))
    return rule((CORES, ALL), (noise * [1.0, ratio]).tolist()) == ALL


def by_median(choices: Sequence[Threads], samples: Sequence[Sequence[float]]) -> Threads:
    """The wrong rule: whatever has the lowest median."""
    return choices[int(np.argmin([median(column) for column in zip(*samples, strict=True)]))]


def test_noise_hardly_ever_changes_the_threads() -> None:
    """Of 4000 choices between equals fewer than one in 25, and of some a third faster most.

    The true rates are near 0.02 and 0.9: a right rule fails with chance below 1e-6, and the wrong
    one, which changes every second time, always.
    """
    rng = np.random.default_rng(4)
    false, true, wrong = (
        np.mean([chosen(rng, ratio, rule) for _ in range(4000)])
        for ratio, rule in ((1.0, best_threads), (0.67, best_threads), (1.0, by_median))
    )
    assert false < 0.04
    assert true > 0.8
    assert wrong > 0.4


# --- the head ---


def test_of_heads_that_gain_alike_the_largest_is_taken() -> None:
    """Near-equal ones are told apart by noise alone; a clear gain is still taken."""
    whole = HeadCost(None, 0.300, 1.0)
    near = [HeadCost(1000, 0.299, 1.0), HeadCost(500, 0.298, 1.0)]
    assert best_head([*near, whole], 1.0) is whole
    dear, larger = HeadCost(None, 0.4, 1.0), HeadCost(2000, 0.2975, 1.0)
    assert best_head([*near, larger, dear], 1.0) is larger
    assert best_head([whole, HeadCost(1000, 0.2, 1.0)], 1.0).ids == 1000


def test_noise_does_not_flip_the_head() -> None:
    """Times off by half a per cent, where all heads come within that of each other.

    Control: the highest gain alone takes every one of them in some of the 50 tries.
    """
    rng = np.random.default_rng(1)
    found, highest = set(), set()
    for _ in range(50):
        costs = [
            HeadCost(ids, 0.25 * seconds, 1.0)
            for ids, seconds in zip((None, 4096, 8192), 1 + 0.005 * rng.random(3), strict=True)
        ]
        found.add(best_head(costs, 1.0).ids)
        highest.add(min(costs, key=lambda cost: cost.seconds).ids)
    assert found == {None}
    assert highest == {None, 4096, 8192}
    assert CLOSE == 0.99


def test_heads_are_timed_in_turn() -> None:
    clock = FakeClock()
    draft = Tunable(VOCAB, clock, lambda n: 0.012)
    assert isinstance(draft, Narrowing)
    texts = [(1, 2, 3, VOCAB - 1), (5, 6)]
    costs = measure_heads(draft, texts, [VOCAB // 2, VOCAB // 4, 100], clock)
    assert [cost.ids for cost in costs] == [None, VOCAB // 2, VOCAB // 4]
    assert [cost.seconds for cost in costs] == pytest.approx([0.012, 0.0096, 0.0084])
    assert costs[0].share == 1.0
    assert costs[1].share == pytest.approx(5 / 6)
    assert clock.now == pytest.approx(4 * (0.012 + 0.0096 + 0.0084))


# --- costs at load ---


def test_a_slow_target_waits_for_its_first_request() -> None:
    clock = FakeClock()
    slow = FakeModel(8, clock=clock, seconds=lambda n: 2.0)
    assert early_curve(slow, (1, 2, 3, 4, 5), clock) is None
    assert clock.now == 2.0
    assert slow.open_sessions == 0
    encoder = FakeModel(8, encoder=True, clock=clock, seconds=lambda n: 2.0)
    assert early_curve(encoder, (1, 2, 3, 4, 5), clock) is None
    assert clock.now == 4.0


def test_costs_at_load_are_those_of_passes_and_drafts() -> None:
    clock = FakeClock()
    target, draft = real_pair(clock)
    curve = early_curve(target, (1, 2, 3, 4, 5, 6), clock)
    assert curve is not None
    assert curve.seconds == pytest.approx([0.045 + 0.0014 * (n - 1) for n in curve.sizes])
    costs = early_costs(curve, DraftModel(draft, 8), (1, 2, 3, 4, 5, 6), clock)
    assert costs.draft_seconds == pytest.approx(0.011, rel=0.1)
    assert target.open_sessions == draft.open_sessions == 0


# --- all of it, with models from files ---


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeClock:
    """Time as the fakes have it, a folder for what is kept, and texts of the first letters."""
    found = FakeClock()
    for name in ("measure_threads", "measure_heads", "early_curve", "early_costs"):
        known = getattr(tuning_module, name)
        monkeypatch.setattr(tuning_module, name, partial(known, clock=found))
    monkeypatch.setattr(tuning_module, "sample_texts", lambda: ["abcabcab", "acbacb"])
    monkeypatch.setattr("draftproof.planner.heads.SMALLEST", 1)
    monkeypatch.setenv("DRAFTPROOF_PROFILES", str(tmp_path / "kept"))
    (tmp_path / "target").write_text("t")
    (tmp_path / "draft").write_text("d")
    return found


def tuned(folder: Path, target: FakeModel, draft: FakeModel | None) -> Tuning:
    files = (folder / "target", folder / "draft")[: 1 if draft is None else 2]
    return Tuning(target=target, tokenizer=FakeTokenizer(), draft=draft, files=files, quantize=None)


def load_pair(folder: Path, target: FakeModel, draft: FakeModel) -> tuple[Any, ...]:
    """What `load` asks for; the head, costs and where they are kept."""
    tuning = tuned(folder, target, draft)
    tuning.choose_threads()
    head = tuning.head()
    drafter = DraftModel(draft, target.vocab_size, None, None)
    profile = tuning.profile(drafter, "model", None)
    return head, tuning.costs(drafter, profile), profile


def big_pair(clock: FakeClock, **settings: Any) -> tuple[Tunable, Tunable]:
    target = Tunable(64, clock, lambda n: 0.045 + 0.0014 * (n - 1), **settings)
    draft = Tunable(64, clock, lambda n: 0.011 + 0.0005 * (n - 1), **settings)
    return target, draft


def test_everything_takes_under_a_second_and_the_next_load_nothing(
    clock: FakeClock, tmp_path: Path
) -> None:
    first = big_pair(clock, speed={PINNED: 0.8})
    head, costs, profile = load_pair(tmp_path, *first)
    assert 0.3 < clock.now < 0.95
    assert [model.threads for model in first] == [PINNED, PINNED]
    assert costs is not None
    assert profile is not None
    assert profile.read().costs == costs

    spent = clock.now
    second = big_pair(clock, speed={ALL: 0.5})  # what would be chosen now
    again, unknown, _ = load_pair(tmp_path, *second)
    assert clock.now == spent
    assert again == head
    assert unknown is None
    assert [model.threads for model in second] == [PINNED, PINNED]
    assert second[0].sessions == second[1].sessions == []


def test_the_first_request_measures_nothing_after_that(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = big_pair(clock)
    _, costs, profile = load_pair(tmp_path, target, draft)
    asked: list[Prompt] = []
    monkeypatch.setattr(measured_module, "measure_costs", lambda *a, **k: asked.append(a))
    for given in (costs, None):  # at the first load, and at the second
        drafter = DraftModel(draft, 64)
        compose(target, None, drafter, "auto", profile, given).lengths.begin((1, 2))
    assert asked == []


def test_the_head_is_kept_though_noise_would_choose_another(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = []
    for dear in (0.6, 0.0):
        target = FakeModel(64, clock=clock, seconds=lambda n: 0.02)
        draft = Tunable(64, clock, lambda n: 0.011, head=dear)
        heads.append(load_pair(tmp_path, target, draft)[0])
    assert heads[0] is not None
    assert heads[0] == heads[1]
    monkeypatch.setenv("DRAFTPROOF_PROFILES", "off")
    assert load_pair(tmp_path, target, draft)[0] is None


@pytest.mark.parametrize("spoilt", [0, -1, 64, True, "many", [2]])
def test_a_head_that_cannot_be_is_measured_again(
    clock: FakeClock, tmp_path: Path, spoilt: object
) -> None:
    target = FakeModel(64, clock=clock, seconds=lambda n: 0.02)
    draft = Tunable(64, clock, lambda n: 0.011, head=0.6)
    head = tuned(tmp_path, target, draft).head()
    (kept,) = (tmp_path / "kept").iterdir()
    kept.write_text(kept.read_text().replace(f'"ids": {head}', '"ids": ' + json.dumps(spoilt)))
    assert tuned(tmp_path, target, draft).head() == head
    assert f'"ids": {head}' in kept.read_text()


@pytest.mark.parametrize("spoilt", [None, {"count": 9, "pinned": False}, {"count": "2"}, [2]])
def test_threads_that_cannot_be_are_chosen_again(
    clock: FakeClock, tmp_path: Path, spoilt: object
) -> None:
    target, _ = big_pair(clock, speed={ALL: 0.5})
    tuned(tmp_path, target, None).choose_threads()
    (kept,) = (tmp_path / "kept").iterdir()
    right = json.dumps(asdict(ALL))
    wrong = json.dumps(spoilt)
    kept.write_text(kept.read_text().replace(f'"threads": {right}}}', f'"threads": {wrong}}}'))
    target.use_threads(CORES)
    tuned(tmp_path, target, None).choose_threads()
    assert target.threads == ALL
    assert f'"threads": {right}}}' in kept.read_text()


def test_models_without_threads_or_a_head_to_cut_are_left_alone(
    clock: FakeClock, tmp_path: Path
) -> None:
    target, draft = FakeModel(64, clock=clock), FakeModel(64, clock=clock)
    assert not isinstance(target, Threaded)
    tuning = tuned(tmp_path, target, draft)
    tuning.choose_threads()
    assert tuning.head() is None
    assert tuned(tmp_path, target, None).head() is None
    assert target.sessions == draft.sessions == []


def test_a_slow_pair_is_loaded_without_its_costs(clock: FakeClock, tmp_path: Path) -> None:
    target = FakeModel(64, clock=clock, seconds=lambda n: 3.0)
    draft = Tunable(64, clock, lambda n: 1.0)
    head, costs, profile = load_pair(tmp_path, target, draft)
    assert clock.now == 3.0
    assert head is costs is profile.read() is None


def test_drafts_that_cost_no_model_are_measured_too(clock: FakeClock, tmp_path: Path) -> None:
    target, _ = big_pair(clock)
    tuning = tuned(tmp_path, target, None)
    drafter = SuffixDrafter()
    profile = tuning.profile(drafter, "suffix", None)
    costs = tuning.costs(drafter, profile)
    assert costs is not None
    assert costs.curve(1) == pytest.approx(0.045)


def test_what_cannot_be_measured_is_no_reason_to_fail(clock: FakeClock, tmp_path: Path) -> None:
    class Full(Tunable):
        def open(self, prompt: Prompt) -> Any:
            raise OutOfMemory("no memory", why="it is full", remedy="free some")

        def trial(self, threads: Threads) -> FakeModel:
            return self

        def narrow(self, ids: Sequence[int]) -> tuple[FakeModel, np.ndarray]:
            return self, np.arange(8)

    target, draft = Full(64, clock, lambda n: 0.1), Full(64, clock, lambda n: 0.1)
    head, costs, profile = load_pair(tmp_path, target, draft)
    assert head is costs is profile.read() is None
    assert target.threads == CORES
    usual, _ = big_pair(clock)
    assert load_pair(tmp_path, usual, draft)[0] is None


def test_without_tuning_the_first_request_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with models that were passed in."""
    clock = FakeClock()
    target, draft = big_pair(clock)
    parts = Parts(target, FakeTokenizer(), DraftModel(draft, 64))
    assert parts.tuning is None
    monkeypatch.setattr(measured_module, "measure_costs", partial(measure_costs, clock=clock))
    lengths = compose(target, None, parts.draft, "auto").lengths
    assert isinstance(lengths, Measured)
    assert clock.now == 0
    lengths.begin((1, 2, 3))
    assert clock.now > 0


def test_what_is_kept_belongs_to_files_and_machine(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another processor, another draft, another file: each is measured anew."""
    load_pair(tmp_path, *big_pair(clock))
    spent = clock.now
    monkeypatch.setattr("draftproof.backends.info.cpu_name", lambda: "another")
    load_pair(tmp_path, *big_pair(clock))
    assert clock.now > 1.5 * spent
    spent = clock.now
    (tmp_path / "draft").write_text("another")
    target, draft = big_pair(clock)
    load_pair(tmp_path, target, draft)
    assert draft.narrowed  # the head was measured, and the threads of the target were not
    assert not any(session.model is not target for session in target.sessions)
    spent = clock.now
    load_pair(tmp_path, *big_pair(clock))
    assert clock.now == spent
    assert len(list((tmp_path / "kept").iterdir())) == 2 * 3 + 2
