"""Suffix decoding against the obvious search, and its store of past outputs.

The comparisons are of whole numbers and of floats computed alike: they hold for every text, or
hypothesis shows one for which they do not.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core import Draft, Verdict
from draftproof.drafters import PastOutputs, SuffixDrafter
from draftproof.drafters.automaton import END, ROOT, Automaton
from draftproof.drafters.suffix import SuffixProposer, confidence
from draftproof.errors import InvalidSetting, ModelCorrupt, ModelNotFound, TokenizerMismatch
from draftproof.planner import draft_cost
from draftproof.ports import Guided
from draftproof.rng import Independent, Noise
from draftproof.sampling import Sampling, Standardiser

VOCAB = 4
STREAM = Independent(Noise(1), 0, 0)
STANDARD = Standardiser(Sampling())

tokens = st.integers(0, VOCAB - 1)
depths = st.integers(1, 6)


@st.composite
def texts(draw: st.DrawFn, most: int = 40) -> list[int]:
    """Random tokens of a small alphabet between copies of what was before."""
    text = draw(st.lists(st.integers(0, draw(st.integers(0, VOCAB - 1))), max_size=most // 3))
    while text and len(text) < most and draw(st.booleans()):
        at = draw(st.integers(0, len(text) - 1))
        text += text[at : at + draw(st.integers(1, 8))] + draw(st.lists(tokens, max_size=2))
    return text[:most]


Found = tuple[int, int, list[tuple[int, int]]]


def search(text: Sequence[int], context: Sequence[int], depth: int) -> Found | None:
    """The obvious search: match length, occurrences, and (token, count) by count and lateness."""
    text, context = list(text), list(context)
    for n in range(min(depth, len(context)), 0, -1):
        starts = [i for i in range(len(text) - n) if text[i : i + n] == context[-n:]]
        followers = [text[i + n] for i in starts if text[i + n] != END]
        if followers:
            ranked = sorted(
                set(followers),
                key=lambda t: (followers.count(t), len(followers) - followers[::-1].index(t)),
                reverse=True,
            )
            return n, len(starts), [(token, followers.count(token)) for token in ranked]
    return None


def ranked(own: Sequence[int], past: Sequence[int], drafted: Sequence[int], depth: int) -> list:
    """All continuations of the own text and `drafted`, surest first, as (token, confidence)."""
    best: dict[int, tuple[float, int, int]] = {}
    for turn, text in enumerate((own, past)):
        found = search(text, [*own, *drafted], depth)
        if found is not None:
            length, total, followers = found
            for rank, (token, count) in enumerate(followers):
                sure = confidence(count, total, length)
                if token not in best or sure > best[token][0]:
                    best[token] = (sure, turn, rank)
    order = sorted(best, key=lambda token: (-best[token][0], *best[token][1:]))
    sure = [best[token][0] for token in order]
    return [(token, sure[i] * math.prod(1 - s for s in sure[:i])) for i, token in enumerate(order)]


def documents(outputs: Sequence[Sequence[int]]) -> list[int]:
    return [token for output in outputs for token in (*output, END)]


def store_of(outputs: Sequence[Sequence[int]], depth: int, capacity: int = 1000) -> PastOutputs:
    store = PastOutputs(VOCAB, capacity, depth)
    for output in outputs:
        store.add(output)
    return store


def begin(
    prompt: Sequence[int], store: PastOutputs | None = None, depth: int = 6
) -> SuffixProposer:
    return SuffixDrafter(store, max_match=depth, factor=9, offset=9).begin(tuple(prompt), STANDARD)


class Priced:
    """A guide whose value is the chance of the path less a price; it checks its numbering."""

    stopped, several = "", False

    def __init__(self, price: float, nodes: int = 12, branching: bool = True) -> None:
        self.price = price
        self.nodes = nodes
        self.branching = branching
        self.kept = [1.0]

    def value(
        self,
        source: str,
        confidence: float | None = None,
        after: int | None = None,
        reads: int = 1,
    ) -> float:
        assert source == "suffix"
        assert confidence is not None
        assert 0 < confidence < 1
        return self.kept[-1 if after is None else after + 1] * confidence - self.price

    def choose(self, options: Sequence[Sequence[tuple[str, float]]], after: int) -> tuple[int, int]:
        raise AssertionError("nothing is drawn")

    def take(self, source: str, confidence: float, after: int | None = None) -> None:
        assert self.value(source, confidence, after) > 0
        self.kept.append(self.kept[-1 if after is None else after + 1] * confidence)


# --- the automaton ---


@given(texts(), depths, st.data())
@settings(max_examples=150, deadline=None)
def test_matches_and_counts_are_those_of_the_obvious_search(
    text: list[int], depth: int, data: st.DataObject
) -> None:
    automaton = Automaton(depth)
    for end in range(len(text) + 1):
        place, drafted = automaton.place(), []
        for _ in range(3):
            found = search(text[:end], text[:end] + drafted, depth)
            if found is None:
                assert place == ROOT
            else:
                length, total, followers = found
                assert place[1] == length
                assert automaton.total(place) == total
                assert automaton.followers(place) == followers
                assert automaton.best(place) == followers[0]
            drafted.append(data.draw(tokens))
            place = automaton.advance(place, drafted[-1])
        automaton.extend(text[end : end + 1])


@given(st.lists(texts(12), max_size=5), texts(12), depths)
@settings(max_examples=100, deadline=None)
def test_no_context_reaches_over_the_end_of_a_document(
    outputs: list[list[int]], context: list[int], depth: int
) -> None:
    automaton, place = Automaton(depth), ROOT
    for output in outputs:
        automaton.extend(output)
        automaton.end()
    for end in range(len(context)):
        place = automaton.advance(place, context[end])
        found = search(documents(outputs), context[: end + 1], depth)
        if found is None:
            assert place[1] == 0
        else:
            assert (place[1], automaton.total(place), automaton.followers(place)) == found


def test_the_comparison_would_see_a_wrong_rule() -> None:
    """Of 200 random texts, the earliest instead of the latest among equals shows in many."""
    rng = np.random.default_rng(3)
    differ = 0
    for _ in range(200):
        text = rng.integers(3, size=20).tolist()
        automaton = Automaton(2)
        automaton.extend(text)
        length, _, followers = search(text, text, 2) or (0, 0, [])
        after = [text[i + length] for i in range(len(text) - length)
                 if text[i : i + length] == text[len(text) - length :]]  # fmt: skip
        differ += max(after, key=after.count) != automaton.best(automaton.place())[0]
        assert automaton.best(automaton.place()) == followers[0]
    assert differ > 20


@pytest.mark.parametrize("period", [1, 2, 7])
def test_periodic_text_stays_cheap(period: int) -> None:
    """At most two states per token, and no more counting for one than the depth allows."""
    automaton = Automaton(8)
    automaton.extend(list(range(period)) * (3000 // period))
    assert automaton.place()[1] == 8
    token, count = automaton.best(automaton.place())
    assert token == len(automaton) % period
    assert count >= 3000 // period - 10


# --- drafts ---


@given(st.lists(texts(16), max_size=3), texts(), depths, st.integers(1, 8), st.data())
@settings(max_examples=150, deadline=None)
def test_drafts_are_those_of_the_obvious_search(
    past: list[list[int]], text: list[int], depth: int, limit: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(text)))
    proposer = begin(text[:cut], store_of(past, depth), depth)
    assert isinstance(proposer, Guided)
    draft = proposer.draft(text[cut:], limit, STREAM)
    expected: list[int] = []
    while len(expected) < limit:
        found = ranked(text, documents(past), expected, depth)
        if not found:
            break
        expected.append(found[0][0])
    assert list(draft.tokens) == expected
    assert draft.chain
    assert draft.certain
    assert draft.sources == ("suffix",) * len(draft)
    # One more token at a time, with drafts on the way, leads to the same.
    grown = begin(text[:cut], store_of(past, depth), depth)
    for end in range(cut, len(text) + 1):
        again = grown.draft(text[cut:end], limit, STREAM)
    assert again == draft


@given(st.lists(texts(16), max_size=2), texts(), st.data())
@settings(max_examples=100, deadline=None)
def test_peeking_says_what_would_be_drafted_and_changes_nothing(
    past: list[list[int]], text: list[int], data: st.DataObject
) -> None:
    proposer, quiet = begin((), store_of(past, 6)), begin((), store_of(past, 6))
    for end in range(len(text) + 1):
        drafted: list[int] = []
        for _ in range(5):
            peeked = proposer.peek(text[:end], drafted)
            found = ranked(text[:end], documents(past), drafted, 6)
            assert peeked == (found[0] if found else None)
            if peeked is None:
                break
            drafted.append(peeked[0])
        assert proposer.draft(text[:end], 5, STREAM).tokens == tuple(drafted)
        assert quiet.draft(text[:end], 5, STREAM).tokens == tuple(drafted)
        other = data.draw(st.lists(tokens, max_size=3))  # what another drafter proposes
        found = ranked(text[:end], documents(past), other, 6)
        assert proposer.peek(text[:end], other) == (found[0] if found else None)


@given(st.lists(texts(16), max_size=2), texts(), st.integers(0, 9), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_trees_hold_the_best_nodes(
    past: list[list[int]], text: list[int], tenths: int, nodes: int
) -> None:
    """Against all paths that are worth the price, enumerated; `limit` bounds each."""
    price, limit = 0.05 + tenths / 20, 4
    worth: dict[tuple[int, ...], float] = {}

    def enumerate_from(path: tuple[int, ...], kept: float) -> None:
        if len(path) < limit:
            for token, sure in ranked(text, documents(past), path, 6):
                if kept * sure > price:
                    worth[(*path, token)] = kept * sure
                    enumerate_from((*path, token), kept * sure)

    enumerate_from((), 1.0)
    guide = Priced(price, nodes)
    draft = begin((), store_of(past, 6)).follow(text, limit, STREAM, guide)
    paths = [tuple(draft.tokens[node] for node in draft.path(i)) for i in range(len(draft))]
    assert guide.kept[1:] == pytest.approx([worth[path] for path in paths])
    assert len(draft) == min(nodes, len(worth))
    assert guide.kept[1:] == pytest.approx(sorted(worth.values(), reverse=True)[: len(draft)])
    chain = begin((), store_of(past, 6)).follow(text, limit, STREAM, Priced(price, nodes, False))
    assert chain.chain
    assert chain.tokens in (*worth, ())


def test_a_tree_is_drawn_where_continuations_differ() -> None:
    text = (1, 2, 3, 0, 1, 2, 0, 3, 1, 2)
    draft = begin(text).follow((), 4, STREAM, Priced(0.1))
    assert {draft.tokens[node] for node in draft.children(-1)} == {0, 3}  # after 1 2
    assert not draft.chain
    alike = begin((1, 2, 3, 0, 1, 2, 3, 0, 1, 2)).follow((), 4, STREAM, Priced(0.1))
    assert alike.parents == ()


@pytest.mark.parametrize(
    ("prompt", "limit", "drafted"),
    [
        ((1, 2, 3, 8, 4, 1, 2, 3, 9, 5, 1, 2, 3, 9, 6, 1, 2, 3), 8, (9, 6, 1, 2, 3, 9, 6, 1)),
        ((1, 2, 3, 1, 2, 3), 8, (1, 2, 3, 1, 2, 3, 1, 2)),  # periodic: 2 * 3 + 2 tokens
        ((1, 2, 3, 1, 2, 3), 9, (1, 2, 3, 1, 2, 3, 1, 2)),
        ((7, 1, 7), 9, (1, 7, 1, 7)),  # a short match allows a short draft
        ((1, 2, 3, 4), 4, ()),
        ((), 4, ()),
    ],
)
def test_worked_examples(prompt: tuple[int, ...], limit: int, drafted: tuple[int, ...]) -> None:
    proposer = SuffixDrafter().begin(prompt, STANDARD)
    assert proposer.draft((), limit, STREAM).tokens == drafted


def test_confidence_grows_with_count_share_and_length() -> None:
    assert confidence(1, 1, 1) < confidence(2, 2, 1) < confidence(2, 2, 4) < 1
    assert confidence(1, 2, 4) < confidence(1, 1, 4)
    assert (round(confidence(1, 1, 1), 2), round(confidence(1, 1, 10), 2)) == (0.30, 0.81)


@pytest.mark.parametrize("wrong", [{"max_match": 0}, {"factor": -1}, {"factor": 0, "offset": 0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidSetting, match="factor"):
        SuffixDrafter(**wrong)


# --- what one request leaves to another ---


def test_requests_meet_in_the_store_only_and_only_when_finished() -> None:
    store = PastOutputs(VOCAB)
    drafter = SuffixDrafter(store)
    writing, waiting = (drafter.begin((1,), STANDARD) for _ in range(2))
    writing.draft((2, 3, 2, 3), 4, STREAM)
    assert waiting.draft((2,), 4, STREAM).tokens == ()
    writing.close()
    writing.close()  # again changes nothing
    assert store.outputs == [(2, 3, 2, 3)]  # the prompt is not part of it
    assert waiting.draft((2,), 2, STREAM).tokens == (3, 2)
    assert waiting.peek((2,), (3, 2)) is not None
    other = SuffixDrafter(PastOutputs(VOCAB)).begin((1,), STANDARD)
    assert other.draft((2,), 4, STREAM).tokens == ()


def test_the_last_round_is_stored_too() -> None:
    store = PastOutputs(VOCAB)
    proposer = SuffixDrafter(store).begin((1, 2, 3, 1, 2), STANDARD)
    draft = proposer.follow((), 4, STREAM, Priced(0.01))
    path = draft.path(len(draft) - 1)
    proposer.observe(Verdict(len(path), 0, "bonus", path))
    proposer.close()
    assert store.outputs == [(*(draft.tokens[node] for node in path), 0)]
    peeking = SuffixDrafter(store).begin((1, 2, 3, 1, 2), STANDARD)
    peeking.draft((), 2, STREAM)
    peeking.peek((3,), ())
    peeking.observe(Verdict(1, 0, "residual"))  # of a draft that others made
    peeking.close()
    assert store.outputs[1:] == [(3,)]
    joined = SuffixDrafter(store).begin((1, 2, 3, 1, 2), STANDARD)
    joined.peek((3,), ())
    joined.remember(Draft.of_certain((1, 2)), Verdict(1, 0, "residual"))
    joined.close()
    assert store.outputs[2:] == [(3, 1, 0)]


def test_a_store_that_does_not_learn_stays_as_it_is() -> None:
    store = store_of([[1, 2, 3]], 6)
    proposer = SuffixDrafter(store, learn=False).begin((0,), STANDARD)
    assert proposer.draft((1,), 2, STREAM).tokens == (2, 3)
    proposer.close()
    assert store.outputs == [(1, 2, 3)]


def test_measuring_what_drafts_cost_teaches_nothing() -> None:
    store = store_of([[1, 2, 3]], 6)
    draft_cost(SuffixDrafter(store), (0, 1, 2), STANDARD)
    assert store.outputs == [(1, 2, 3)]


# --- the store ---


@given(st.lists(texts(30), max_size=12), st.integers(4, 60))
@settings(max_examples=100, deadline=None)
def test_the_oldest_outputs_go_first_and_the_bound_holds(
    outputs: list[list[int]], capacity: int
) -> None:
    store = PastOutputs(VOCAB, capacity, 4)
    added: list[tuple[int, ...]] = []
    for output in outputs:
        store.add(output)
        added += [tuple(output[-(capacity // 2 - 1) :])] if output else []
        held = store.outputs
        assert len(store) == len(documents(held)) <= capacity
        assert held == added[len(added) - len(held) :]
        if len(held) < len(added):
            assert held
            assert 2 * len(documents(added[len(added) - len(held) - 1 :])) >= capacity
        fresh = store_of(held, 4)
        for context in held:
            assert looks(store.index, context) == looks(fresh.index, context)


def looks(automaton: Automaton, context: Sequence[int]) -> list[tuple]:
    """All that an automaton says along a text."""
    place, said = ROOT, []
    for token in context:
        place = automaton.advance(place, token)
        if place[1]:
            said.append((place[1], automaton.total(place), automaton.followers(place)))
    return said


@given(st.lists(texts(20), max_size=6))
@settings(max_examples=50, deadline=None)
def test_stores_survive_the_disk(
    tmp_path_factory: pytest.TempPathFactory, outputs: list[list[int]]
) -> None:
    path = tmp_path_factory.mktemp("store") / "past.npz"
    store = store_of(outputs, 6)
    store.save(path)
    first = path.read_bytes()
    store.save(path)
    assert path.read_bytes() == first
    assert [p.name for p in path.parent.iterdir()] == ["past.npz"]
    loaded = PastOutputs.load(path, VOCAB)
    assert loaded.outputs == store.outputs
    assert loaded.vocab_size == VOCAB
    small = PastOutputs.load(path, capacity=8)
    assert len(small) <= 8
    assert small.outputs == [o[-3:] for o in store.outputs][-len(small.outputs) :] or not len(small)
    with pytest.raises(TokenizerMismatch, match="of 4, not 7"):
        PastOutputs.load(path, vocab_size=7)


def test_damaged_stores_are_refused(tmp_path: Path) -> None:
    """Any flipped byte is refused or changes nothing; so are cuts and arrays that do not fit."""
    path = tmp_path / "past.npz"
    store = store_of([[1, 2, 3, 1, 2], [3]], 6)
    store.save(path)
    whole = path.read_bytes()
    damages = [whole[: len(whole) // 2], b"", b"text"]
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 0xFF
        damages.append(bytes(flipped))
    refused = 0
    for damage in damages:
        path.write_bytes(damage)
        try:
            assert PastOutputs.load(path).outputs == store.outputs
        except ModelCorrupt:
            refused += 1
    assert refused > len(damages) // 2
    fitting = {"version": [1, 4], "lengths": [2, 1], "tokens": [0, 1, 3]}
    for wrong in (
        {"version": [2, 4]},
        {"version": [1, 3]},
        {"version": [1, 0]},
        {"version": [1]},
        {"lengths": [2, 2]},
        {"lengths": [4, -1]},
        {"lengths": [3, 0]},
        {"lengths": [[2, 1]]},
        {"tokens": [0, 1, -1]},
        {"tokens": [0.0, 1.0, 3.0]},
    ):
        np.savez(path, **{k: np.array(v) for k, v in (fitting | wrong).items()})
        with pytest.raises(ModelCorrupt, match=r"past\.npz"):
            PastOutputs.load(path)
    np.savez(path, **{k: np.array(v) for k, v in fitting.items()})
    assert PastOutputs.load(path).outputs == [(0, 1), (3,)]
    with pytest.raises(ModelNotFound, match="past outputs"):
        PastOutputs.load(tmp_path / "nowhere.npz")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "past.npz"
    store_of([[1, 2]], 6).save(path)

    def fail(*arguments: object, **arrays: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="no space"):
        store_of([[3]], 6).save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["past.npz"]
    assert PastOutputs.load(path).outputs == [(1, 2)]


@pytest.mark.parametrize("wrong", [{"capacity": 3}, {"vocab_size": 0}, {"max_match": 0}])
def test_stores_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(wrong))):
        PastOutputs(**{"vocab_size": VOCAB, **wrong})


def test_foreign_tokens_are_refused() -> None:
    store = store_of([[1]], 6)
    with pytest.raises(InvalidSetting, match="token 4"):
        store.add([2, 4])
    assert store.outputs == [(1,)]


@pytest.mark.parametrize(
    ("method", "capacity"),
    [("_grow", 12), ("_tally", 12), ("_grow", 1000), ("_tally", 1000), ("_split_off", 1000)],
)
def test_an_interrupt_while_closing_does_not_lose_the_store(
    method: str, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of([[1, 2, 3], [2, 3, 0]], 6, capacity)
    before = store.outputs
    proposer = SuffixDrafter(store).begin((1,), STANDARD)
    proposer.draft((1, 2, 1, 2, 0), 4, STREAM)
    original: Callable[..., object] = getattr(Automaton, method)
    calls = []

    def interrupted(self: Automaton, *arguments: int) -> object:
        calls.append(original(self, *arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(Automaton, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        proposer.close()
    with pytest.raises(KeyboardInterrupt):
        store.add([0, 0, 1, 0])  # again, while it is mended
    monkeypatch.undo()
    assert calls
    assert store.outputs in (before, [])[: 1 + (capacity == 12)]  # 12: there was no room for both
    store.add([1, 2, 0])
    assert store.outputs[-1] == (1, 2, 0)
    fresh = store_of(store.outputs, 6)
    assert looks(store.index, (1, 2, 3, 0)) == looks(fresh.index, (1, 2, 3, 0))


def test_threads_share_a_store() -> None:
    """Four threads write 40 outputs each while they draft: none is lost, torn or mixed."""
    store = PastOutputs(VOCAB, 100_000, 6)
    drafter = SuffixDrafter(store)
    failures: list[BaseException] = []

    def work(token: int) -> None:
        try:
            for size in range(1, 41):
                proposer = drafter.begin((token,), STANDARD)
                for end in range(0, size, 8):
                    draft: Draft = proposer.draft((token,) * end, 4, STREAM)
                    assert set(draft.tokens) <= set(range(VOCAB))
                    proposer.observe(Verdict(0, token, "residual"))
                proposer.draft((token,) * size, 4, STREAM)
                proposer.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(token,)) for token in range(VOCAB)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    expected = [(token,) * size for token in range(VOCAB) for size in range(1, 41)]
    assert sorted(store.outputs) == sorted(expected)
    fresh = store_of(store.outputs, 6, store.capacity)
    assert looks(store.index, (0, 1, 1, 2)) == looks(fresh.index, (0, 1, 1, 2))
