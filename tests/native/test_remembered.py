"""Sessions that go on from what closed ones had cached: what they share, and bits as without it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("draftproof._native", reason="the CPU engine was not built")

from cpu_models import cpu_model, same
from mixed_models import VOCAB, build

from draftproof import _native as native
from draftproof.backends.cpu.model import CpuModel
from draftproof.backends.cpu.remembered import Remembered
from draftproof.core import Logits, shared_length
from draftproof.drafters import DraftModel, Mix, SelfSpec, SuffixDrafter
from draftproof.engine import Running, Speculator, decode
from draftproof.errors import InvalidSetting, OutOfMemory, UnsupportedModel
from draftproof.planner import Auto, CostCurve, Costs, Fixed
from draftproof.planner.length import FAR, AutoPolicy
from draftproof.ports import Drafter, Guide, Pass, session_over
from tests.fakes import FakeModel

TOKENS = np.random.default_rng(3).integers(0, VOCAB, 200).tolist()
COSTS = Costs(CostCurve(tuple(range(1, 18)), tuple(0.9 + 0.1 * n for n in range(1, 18))), (0.2,))
SHORT = st.lists(st.integers(0, 1), max_size=6)


def model(remember: int = 1, **traits: Any) -> CpuModel:
    made = cpu_model(build(("Q4_K", "Q6_K", "Q8_0"), **traits))
    made.remember(remember)
    return made


def read(engine: CpuModel, text: Sequence[int]) -> None:
    """What a request over a text leaves."""
    session = session_over(engine, tuple(text))
    session.score(text[session.length :], keep=0)
    session.close()


# --- which cache is taken over ---


@settings(deadline=None)
@given(st.lists(SHORT, max_size=5), SHORT, st.integers(0, 4))
def test_the_longest_beginning_among_the_latest_is_taken(
    texts: list[list[int]], text: list[int], most: int
) -> None:
    remembered = Remembered()
    remembered.remember(most)
    for number, kept in enumerate(texts):
        remembered.put("engine", kept, number)
        remembered.put("another", text, -1)
    kept = [number for number, kept in enumerate(texts) if kept][-most:] if most else []
    shares = {number: shared_length(texts[number], text) for number in kept}
    found = remembered.take("engine", text)
    best = max(shares.values(), default=0)
    if best == 0:
        assert found is None
    else:
        assert found is not None
        assert found[0] == best == shares[found[1]]
        left = remembered.take("engine", texts[found[1]])
        assert left is None or left[1] != found[1]


@given(SHORT, SHORT)
def test_shared_is_the_longest_common_beginning(one: list[int], other: list[int]) -> None:
    length = shared_length(one, other)
    assert one[:length] == other[:length]
    assert one[length : length + 1] != other[length : length + 1] or length in (
        len(one),
        len(other),
    )


# --- sessions ---


@pytest.mark.parametrize("common", [0, 1, 17, 63, 64, 99, 100, 120])
def test_a_resumed_session_has_the_bits_of_a_new_one(common: int) -> None:
    """The control: without the tokens that it took over, logits differ."""
    engine = model()
    read(engine, TOKENS[:100])
    text = [*TOKENS[:common], *TOKENS[150:180]]
    session, fresh = engine.resume(tuple(text)), engine.open(tuple(text))
    assert session.length == min(common, 100)
    assert fresh.length == 0
    new = session.score(text[session.length :], keep=30)
    assert same(new, fresh.score(text, keep=30))
    if common:
        bare = engine.open(tuple(text[common:]))
        assert not same(new, bare.score(text[common:], keep=30))


def test_the_last_token_of_a_prompt_is_never_cached() -> None:
    engine = model()
    read(engine, TOKENS[:50])
    for length in (50, 40, 1):
        session = engine.resume(tuple(TOKENS[:length]))
        assert session.length == length - 1
        session.score(TOKENS[length - 1 : length], keep=1)
        session.close()


def test_what_a_tree_left_counts_and_what_was_rewound_does_not() -> None:
    engine = model()
    session = engine.open((1,))
    session.score([1, 2, 3, 4, 5], keep=0)
    session.rewind(3)
    session.score_tree([7, 8, 9, 10], [-1, 0, 0, 2])
    session.keep([0, 2])
    session.score_tree([11], [-1])  # left open
    session.close()
    text = (1, 2, 3, 7, 9, 10, 5)
    again, fresh = engine.resume(text), engine.open(text)
    assert again.length == 5
    assert same(again.score(text[5:], keep=2), fresh.score(text, keep=2))


def test_only_as_many_are_kept_as_were_asked_for() -> None:
    engine = model(2)
    for start in (0, 20, 40):
        read(engine, TOKENS[start : start + 20])
    lengths = [engine.resume(tuple(TOKENS[s : s + 20])).length for s in (0, 20, 40)]
    assert lengths == [0, 19, 19]
    engine.remember(0)
    assert not engine.remembers
    read(engine, TOKENS[:20])
    assert session_over(engine, tuple(TOKENS[:20])).length == 0


def test_first_layers_have_caches_of_their_own() -> None:
    engine = model()
    shallow = engine.shallow(1)
    read(engine, TOKENS[:30])
    assert shallow.resume(tuple(TOKENS[:30])).length == 0
    read(shallow, TOKENS[:30])
    assert engine.resume(tuple(TOKENS[:30])).length == 29


def test_narrowed_heads_score_resumed_sessions() -> None:
    engine = model()
    read(engine, TOKENS[:30])
    narrow, columns = engine.narrow([5])
    session, fresh = engine.resume(tuple(TOKENS[:30])), engine.open(tuple(TOKENS[:30]))
    (row,) = narrow.score_together([Pass(session, tuple(TOKENS[29:30]), 1)])[0]
    assert same(row, fresh.score(TOKENS[:30], keep=1)[0][columns])


def test_remembered_caches_give_way_where_memory_is_short() -> None:
    page = build(("Q8_0",)).page_bytes
    engine = cpu_model(build(("Q8_0",), cache_bytes=2 * page))
    engine.remember(4)
    read(engine, [3] * native.PAGE)
    read(engine, [4] * native.PAGE)
    session = engine.open((5,))
    session.score([5] * (2 * native.PAGE), keep=1)
    assert not engine.remembered.clear()  # there is none left
    with pytest.raises(OutOfMemory):
        session.score([5], keep=1)


def test_an_interrupted_session_is_remembered_as_far_as_it_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = model()
    session = engine.open((1,))
    session.score(TOKENS[:20], keep=0)

    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "appended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.score(TOKENS[20:30], keep=0)
    session.close()
    again, fresh = engine.resume(tuple(TOKENS[:40])), engine.open(tuple(TOKENS[:40]))
    assert again.length == 20
    assert same(again.score(TOKENS[20:40], keep=1), fresh.score(TOKENS[:40], keep=1))


# --- requests ---


def drafters(target: CpuModel) -> dict[str, Drafter | None]:
    draft = cpu_model(build(("Q4_K",), seed=1))
    return {
        "none": None,
        "model": DraftModel(draft, VOCAB, head=64),
        "mix": Mix(DraftModel(draft, VOCAB), SuffixDrafter()),
        "selfspec": SelfSpec(target, 1),
    }


class Counting(CpuModel):
    """Counts the tokens that its passes score."""

    scored = 0

    def score_together(self, passes: Sequence[Pass]) -> list[Logits]:
        self.scored += sum(len(part.tokens) for part in passes)
        return super().score_together(passes)


@pytest.mark.parametrize("name", ["none", "model", "mix", "selfspec"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_conversation_reads_only_what_is_new(name: str, temperature: float) -> None:
    """A prompt is the last one with its answer and 5 tokens more; the text is as ever."""
    told = []
    for remember in (0, 1):
        target = model(0)
        target.__class__ = Counting
        speculator = Speculator(
            target, None, drafters(target)[name], Fixed(0 if name == "none" else 3)
        )
        speculator.remember(remember)
        text, outputs = TOKENS[:40], []
        for turn in range(3):
            before = target.scored
            running = speculator.start(
                text, max_tokens=12, temperature=temperature, seed=turn, verify="token"
            )
            read_now = target.scored - before
            assert read_now == (5 if remember and turn else len(text) - 1)
            for _ in decode([running]):
                pass
            outputs.append(running.output)
            text = [*text, *running.output, *TOKENS[100 + 5 * turn : 105 + 5 * turn]]
        told.append(outputs)
    assert told[0] == told[1]


def test_a_draft_is_priced_by_what_it_has_still_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second turn it is a few tokens, and not the conversation."""
    target = model(0)
    mix = drafters(target)["mix"]
    priced: list[float] = []

    class Noting(AutoPolicy):
        def guide(self, branching: bool, room: int = FAR, unread: float = 0.0) -> Guide:
            priced.append(unread)
            return super().guide(branching, room, unread)

    class Noted:
        def begin(self, prompt: object, reproducible: bool = False) -> Noting:
            return Noting(Auto(COSTS))

    first = Speculator(target, None, mix, Fixed(3))
    first.remember()
    answer = first.generate(TOKENS[:100], max_tokens=10).token_ids
    text = [*TOKENS[:100], *answer, *TOKENS[150:160]]
    monkeypatch.setattr(Running, "read_seconds", 10.0, raising=False)
    monkeypatch.setattr(Running, "__setattr__", _but_read_seconds)
    Speculator(target, None, mix, Noted()).generate(text, max_tokens=2)
    assert 10.0 <= priced[0] <= 14.0  # the target reads 10 tokens, the draft up to 4 more
    priced.clear()
    first.remember(0)
    Speculator(target, None, mix, Noted()).generate(text, max_tokens=2)
    assert priced[0] == 10.0  # for the draft reads as much as the target does


def _but_read_seconds(running: Running, name: str, value: Any) -> None:
    if name != "read_seconds":
        object.__setattr__(running, name, value)


def test_requests_in_threads_do_not_share_a_session() -> None:
    target = model(2)
    speculator = Speculator(target, None, SelfSpec(target, 1), Fixed(2))
    speculator.remember(2)
    alone = Speculator(model(0), None, None, Fixed(0))
    texts = [TOKENS[:30], TOKENS[:35], [*TOKENS[:20], *TOKENS[60:80]], TOKENS[50:90]] * 3
    expected = [alone.generate(text, max_tokens=8).token_ids for text in texts]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda text: speculator.generate(text, max_tokens=8).token_ids, texts))
    assert got == expected


def test_what_cannot_be_remembered_is_refused() -> None:
    speculator = Speculator(FakeModel(8), None, None, Fixed(0))
    with pytest.raises(UnsupportedModel, match="cannot keep"):
        speculator.remember()
    speculator = Speculator(model(0), None, None, Fixed(0))
    with pytest.raises(InvalidSetting, match="sessions is -1"):
        speculator.remember(-1)
