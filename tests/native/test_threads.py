"""The threads that compute a pass may change after loading, and be pinned to processors."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("draftproof._native", reason="the CPU engine was not built")

from cpu_models import cpu_model, same
from gguf_models import metadata_of, tensors_of, write_model
from mixed_models import FORMATS, VOCAB, build, one_by_one, score

from draftproof import tuning
from draftproof.backends.cpu import processors as processors_module
from draftproof.backends.cpu.processors import allowed, choices, cores, one_per_core
from draftproof.load import load
from draftproof.ports import Shallowing, Threaded, Threads

linux = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="nothing is pinned here")
TOKENS = np.random.default_rng(9).integers(0, VOCAB, 40).tolist()


@pytest.fixture
def model() -> Any:
    return build(("Q8_0",), threads=1)


@contextmanager
def new_threads() -> Iterator[set[int]]:
    """The system's numbers of the threads that are started meanwhile."""
    before = set(os.listdir("/proc/self/task"))
    found: set[int] = set()
    yield found
    found |= {int(name) for name in set(os.listdir("/proc/self/task")) - before}


@linux
def test_each_worker_is_kept_on_its_own_processor_and_the_caller_is_not(model: Any) -> None:
    may = sorted(os.sched_getaffinity(0))
    with new_threads() as workers:
        model.use_threads(len(may), may)
        score(model, model.open(), TOKENS)
    assert sorted(tuple(os.sched_getaffinity(worker)) for worker in workers) == [
        (processor,) for processor in may[1:]
    ]
    assert sorted(os.sched_getaffinity(0)) == may
    assert model.processors == may
    model.use_threads(len(may))
    assert model.processors == []


@linux
def test_the_caller_is_on_its_processor_for_the_time_of_a_pass(model: Any) -> None:
    """A thread that scores for a while is seen there, and has its own processors between passes."""
    may = sorted(os.sched_getaffinity(0))
    if len(may) == 1:
        pytest.skip("it can be nowhere else")
    model.use_threads(1, may[-1:])
    seen: set[tuple[int, ...]] = set()
    tids: list[int] = []
    done = threading.Event()

    def work() -> None:
        tids.append(threading.get_native_id())
        while not done.is_set():
            score(model, model.open(), TOKENS * 10)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(100_000):
            if tids:
                seen.add(tuple(sorted(os.sched_getaffinity(tids[0]))))
            if len(seen) == 2:
                break
    finally:
        done.set()
        worker.join()
    assert seen == {tuple(may), (may[-1],)}


@linux
def test_a_caller_that_may_not_go_there_stays_where_it_is(model: Any) -> None:
    may = sorted(os.sched_getaffinity(0))
    model.use_threads(1, [may[-1] + 1])
    score(model, model.open(), TOKENS)
    assert sorted(os.sched_getaffinity(0)) == may


def test_models_with_the_same_threads_share_them() -> None:
    if not Path("/proc/self/task").exists():
        pytest.skip("threads cannot be counted here")
    models = [build(("Q8_0",), threads=1) for _ in range(2)]
    with new_threads() as workers:
        for model in models:
            model.use_threads(4)
    assert len(workers) == 3
    for model in models:
        model.use_threads(1)
    assert not workers & {int(name) for name in os.listdir("/proc/self/task")}  # they have ended


def test_threads_change_while_another_thread_computes(model: Any) -> None:
    alone = one_by_one(model, TOKENS)
    wrong: list[int] = []

    def compute() -> None:
        for _ in range(30):
            wrong.append(int(not same(score(model, model.open(), TOKENS), alone)))

    computing = threading.Thread(target=compute)
    computing.start()
    while computing.is_alive():
        for threads in (3, 1, 2):
            model.use_threads(threads)
            assert model.threads == threads
    computing.join()
    assert len(wrong) == 30
    assert not any(wrong)


@pytest.mark.parametrize("wrong", [(0,), (1025,), (2, [0]), (1, [-1])])
def test_threads_that_cannot_be_are_refused(model: Any, wrong: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"threads|processor"):
        model.use_threads(*wrong)
    assert model.threads == 1


# --- behind the ports ---


def test_the_model_says_what_it_runs_on() -> None:
    model = cpu_model(build(FORMATS, threads=3))
    assert isinstance(model, Threaded)
    assert model.threads == Threads(3)
    assert (model.info()["threads"], model.info()["pinned"]) == (3, False)
    pinned = Threads(len(one_per_core()), pinned=True)
    model.use_threads(pinned)
    assert model.threads == (pinned if model.choices()[-1].pinned else Threads(pinned.count))
    assert model.info()["pinned"] == model.threads.pinned


def test_a_trial_has_threads_of_its_own_and_the_bits_of_the_first_layers() -> None:
    model = cpu_model(build(("Q8_0",), threads=1))
    trial = model.trial(Threads(2))
    assert isinstance(trial, Shallowing)
    assert (trial.threads.count, model.threads.count) == (2, 1)
    assert trial.layers == model.layers  # too small a model to be cut
    logits = trial.open((1,)).score(TOKENS, keep=len(TOKENS))
    full = model.open((1,)).score(TOKENS, keep=len(TOKENS))
    assert same(logits, np.ascontiguousarray(full[:, : logits.shape[1]]))
    assert 0 < logits.shape[1] < full.shape[1]


def test_a_trial_of_a_large_model_is_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = cpu_model(build(("Q8_0",)))
    monkeypatch.setattr("draftproof.backends.cpu.model.TRIAL_BYTES", 1)
    assert model.trial(Threads(1)).layers == 1


def test_the_first_choice_is_a_thread_for_each_core() -> None:
    choices = cpu_model(build(("Q8_0",))).choices()
    assert choices[0] == Threads(cores())
    assert len(set(choices)) == len(choices)
    assert all(1 <= choice.count <= len(allowed()) for choice in choices)


def test_loading_chooses_threads_once_and_the_draft_has_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless they are given. The text is the same on any."""
    monkeypatch.setenv("DRAFTPROOF_PROFILES", str(tmp_path / "kept"))
    file = write_model(tmp_path / "model.gguf", metadata_of("llama"), tensors_of("llama"))
    asked: list[int] = []

    def chosen(choices: Sequence[Threads], samples: Sequence[Sequence[float]]) -> Threads:
        asked.append(len(samples[0]))
        return choices[-1]

    monkeypatch.setattr(tuning, "best_threads", chosen)
    first, again = (load(file, draft=file, drafter="model") for _ in range(2))
    given = load(file, draft=file, drafter="model", threads=3)
    assert asked == ([len(choices())] if len(choices()) > 1 else [])
    assert again.target.threads == choices()[-1]  # type: ignore[attr-defined]
    assert given.target.threads == Threads(3)  # type: ignore[attr-defined]
    texts = set()
    for pair in (first, again, given):
        assert pair.drafter.model.threads == pair.target.threads  # type: ignore
        texts.add(tuple(pair.generate([5, 6, 7], max_tokens=20).token_ids))
    assert len(texts) == 1


# --- processors, from the system's description of them ---


def described(folder: Path, siblings: dict[int, str]) -> Path:
    for processor, text in siblings.items():
        place = folder / f"cpu{processor}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("siblings", "may", "first"),
    [
        ({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, (0, 1, 2, 3), (0, 1)),
        ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, (0, 1, 2, 3), (0, 2)),
        ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, (1, 2, 3), (1, 2)),
        ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, (0, 1), (0,)),
        ({0: "0", 1: "1"}, (0, 1), (0, 1)),
    ],
    ids=["halves", "neighbours", "a part", "one core", "plain"],
)
def test_one_processor_of_each_core(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    siblings: dict[int, str],
    may: tuple[int, ...],
    first: tuple[int, ...],
) -> None:
    monkeypatch.setattr(processors_module, "SYSTEM", described(tmp_path, siblings))
    monkeypatch.setattr(processors_module, "allowed", lambda: may)
    assert one_per_core() == first
    assert cores() == len(first)
    counts = [choice.count for choice in processors_module.choices()]
    assert counts[0] == len(first)
    assert set(counts) == {len(first), len(may)}


def test_where_the_system_describes_no_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors_module, "SYSTEM", tmp_path)
    monkeypatch.setattr(processors_module, "allowed", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(processors_module.psutil, "cpu_count", lambda logical: 2)
    assert cores() == 2
    assert [(c.count, c.pinned) for c in processors_module.choices()] == [(2, False), (4, False)]
