"""Requests that share the target's passes: the same tokens as alone, in fewer passes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from fakes import BatchingFakeModel, BrokenContract, FakeClock, FakeModel

from draftproof.core import Limits
from draftproof.drafters import DraftModel, PromptLookup
from draftproof.engine import Request, Running, Speculator, decode
from draftproof.engine import request as request_module
from draftproof.engine import round as round_module
from draftproof.errors import BadLogits
from draftproof.planner import Fixed
from draftproof.ports import Batching, Drafter, Pass
from draftproof.sampling import Sampling

PROMPTS = ((5, 6, 7, 5, 6), (1,), (2, 3, 4, 2, 3, 4, 2), (9, 8, 9, 8))
VOCAB = 12


def drafters(target: FakeModel) -> dict[str, Drafter | None]:
    near = FakeModel(VOCAB, near=target, distance=0.4, seed=9)
    return {"none": None, "model": DraftModel(near, VOCAB), "lookup": PromptLookup()}


def running(
    target: FakeModel, drafter: Drafter | None, prompts: Sequence[tuple[int, ...]], tokens: int = 9
) -> list[Running]:
    return [
        Running(
            Request(prompt=prompt, sampling=Sampling(), limits=Limits(tokens)),
            target, None, drafter, Fixed(0 if drafter is None else 3),
        )
        for prompt in prompts
    ]  # fmt: skip


def play(requests: Sequence[Running]) -> list[list[int]]:
    for _ in decode(requests):
        pass
    return [request.output for request in requests]


def test_the_capability_is_seen_without_reading_properties() -> None:
    class Reluctant(FakeModel):
        @property
        def cost(self) -> int:
            raise AssertionError("a property was read")

    assert isinstance(BatchingFakeModel(), Batching)
    assert not isinstance(Reluctant(), Batching)


@pytest.mark.parametrize("kind", ["none", "model", "lookup"])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}])
def test_a_batch_writes_what_its_rows_write_alone(kind: str, options: dict[str, float]) -> None:
    """Rows of different lengths, so that some end before others; greedy and sampled."""
    target = BatchingFakeModel(VOCAB, seed=4, eos=(11,))
    spec = Speculator(target, None, drafters(target)[kind], Fixed(0 if kind == "none" else 3))
    alone = [spec.generate(prompt, max_tokens=25, **options) for prompt in PROMPTS]
    assert target.batches == []  # one session needs no common pass
    batch = spec.generate(list(PROMPTS), max_tokens=25, **options)
    assert [g.token_ids for g in batch] == [g.token_ids for g in alone]
    assert len({len(g.token_ids) for g in batch}) > 1
    assert [g.stats.rounds for g in batch] == [g.stats.rounds for g in alone]
    assert target.open_sessions == 0


def test_one_pass_a_round_and_one_for_the_prompts() -> None:
    """All prompts but their last tokens, then a round of all rows, to the end of each."""
    target = BatchingFakeModel(VOCAB, seed=4)
    play(running(target, None, PROMPTS, tokens=5))
    prompts = tuple(len(prompt) - 1 for prompt in PROMPTS if len(prompt) > 1)
    assert target.batches == [prompts, *[(1, 1, 1, 1)] * 5]
    plain = FakeModel(VOCAB, seed=4)
    play(running(plain, None, PROMPTS, tokens=5))
    assert sum(session.passes for session in plain.sessions) == len(prompts) + 4 * 5


def test_the_passes_time_is_shared_by_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares add up to the clock, and say how much company there was."""
    clock = FakeClock()
    monkeypatch.setattr(round_module, "perf_counter", clock)
    monkeypatch.setattr(request_module, "perf_counter", clock)
    target = BatchingFakeModel(VOCAB, seed=4, clock=clock, seconds=lambda n: 1 + 0.25 * n)
    requests = running(target, PromptLookup(), PROMPTS)
    play(requests)
    stats = [request.stats() for request in requests]
    assert sum(s.prefill_seconds + s.score_seconds for s in stats) == pytest.approx(clock.now)
    assert stats[1].prefill_seconds == 0  # one token: nothing to read before the first round
    first = [request.rounds[0] for request in requests]
    total = sum(account.scored for account in first)
    assert {account.others for account in first} == {3}
    assert [account.beside for account in first] == [total - account.scored for account in first]
    for account in first:
        share = (1 + 0.25 * total) * account.scored / total
        assert account.score_seconds == pytest.approx(share)
    longest = max(requests, key=lambda request: len(request.rounds))
    assert longest.rounds[-1].others < 3  # rows that have ended leave the pass


@pytest.mark.parametrize("kind", [FakeModel, BatchingFakeModel])
def test_bad_logits_end_a_batch_alike_with_and_without_common_passes(kind: type[FakeModel]) -> None:
    """The rows before the faulty one keep their round; every cache is freed."""
    target = kind(VOCAB, seed=4, fail_at=len(PROMPTS[2]) + 2)
    requests = running(target, None, PROMPTS[1:])
    with pytest.raises(BadLogits, match="position 3"):
        play(requests)
    assert [len(request.output) for request in requests] == [4, 3, 3]
    assert {request.finish_reason for request in requests} == {"interrupted"}
    assert target.open_sessions == 0


def test_a_full_context_ends_its_own_row_only() -> None:
    target = BatchingFakeModel(VOCAB, seed=4, context_length=10)
    requests = running(target, PromptLookup(), PROMPTS[:3], tokens=7)
    outputs = play(requests)
    assert [request.finish_reason for request in requests] == ["context", "length", "context"]
    assert outputs == [target.plain(PROMPTS[i], n) for i, n in enumerate((6, 7, 4))]


def test_a_stream_has_read_its_prompt_when_it_begins() -> None:
    """So a prompt that cannot be read is an error of the call, and no cache is left behind."""
    target = BatchingFakeModel(VOCAB, seed=4)
    stream = Speculator(target, None, None, Fixed(0)).stream(PROMPTS[0])
    assert [session.length for session in target.sessions] == [len(PROMPTS[0]) - 1]
    stream.close()

    class Unreadable(BatchingFakeModel):
        def spend(self, tokens: int) -> None:
            raise MemoryError

    broken = Unreadable(VOCAB)
    with pytest.raises(MemoryError):
        Speculator(broken, None, None, Fixed(0)).stream(PROMPTS[0])
    assert broken.open_sessions == 0


def test_requests_of_several_targets_share_passes_by_target() -> None:
    one, two = BatchingFakeModel(VOCAB, seed=4), BatchingFakeModel(VOCAB, seed=5)
    mixed = [
        *running(one, None, PROMPTS[:2], tokens=2),
        *running(two, None, PROMPTS[2:], tokens=2),
    ]
    outputs = play([mixed[0], mixed[2], mixed[1], mixed[3]])
    assert one.batches == [(1, 1), (1, 1)]
    assert two.batches == [(6, 3), (1, 1), (1, 1)]
    plain = [one.plain(PROMPTS[0], 2), two.plain(PROMPTS[2], 2), one.plain(PROMPTS[1], 2)]
    assert outputs[:3] == plain


def test_a_pass_that_fails_frees_every_cache() -> None:
    class Failing(BatchingFakeModel):
        def score_together(self, passes: Sequence[Pass]) -> list[np.ndarray]:
            if len(self.batches) == 2:
                raise MemoryError
            return super().score_together(passes)

    target = Failing(VOCAB, seed=4)
    requests = running(target, None, PROMPTS)
    with pytest.raises(MemoryError):
        play(requests)
    assert [len(request.output) for request in requests] == [1, 1, 1, 1]
    assert target.open_sessions == 0


def test_the_fake_refuses_a_session_that_takes_part_twice() -> None:
    target = BatchingFakeModel(VOCAB)
    session = target.open((1, 2))
    with pytest.raises(BrokenContract, match="twice"):
        target.score_together([Pass(session, (1,), 1), Pass(session, (2,), 1)])
