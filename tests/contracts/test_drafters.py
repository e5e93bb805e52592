"""What every drafter owes the engine, and what each of them does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fakes import BrokenContract, FakeModel, FakeTokenizer

from draftproof.core import Dense, Draft, PointMass, Verdict
from draftproof.drafters import (
    CrossVocab,
    DraftModel,
    Mix,
    NGram,
    PastOutputs,
    PromptLookup,
    SelfSpec,
    SuffixDrafter,
)
from draftproof.errors import (
    BadLogits,
    DraftproofError,
    InvalidSetting,
    ModelCorrupt,
    ModelNotFound,
    PromptTooLong,
    TokenizerMismatch,
    UnsupportedModel,
)
from draftproof.ports import Drafter, Proposer
from draftproof.rng import Independent, Noise, Shared
from draftproof.sampling import Sampling, Standardiser
from draftproof.verify import block

VOCAB = 8
PROMPT = (1, 2, 3, 1, 2)
SAMPLED = Sampling(temperature=0.9, top_p=0.95)
GREEDY = Sampling()


def past() -> PastOutputs:
    store = PastOutputs(VOCAB)
    store.add((1, 2, 4, 5, 1, 2, 4, 6, 2, 3, 0, 7))
    return store


class Layered(FakeModel):
    """Four layers, each of which brings the logits nearer to the whole model's."""

    layers = 4

    def shallow(self, layers: int) -> FakeModel:
        distance = 1 - layers / self.layers
        return FakeModel(self.vocab, name=self.name, near=self, distance=distance, seed=5)


def across() -> CrossVocab:
    """All of the target's tokens are common, by other ids; the draft joins two letters."""
    target = FakeTokenizer([b"a", b"b", b"c", b"d"])
    draft = FakeTokenizer([b"d", b"ab", b"c", b"b", b"a"])
    return CrossVocab(FakeModel(9, seed=3), draft, target, VOCAB)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "model": lambda: DraftModel(FakeModel(VOCAB, seed=3), VOCAB),
    "model, smaller head": lambda: DraftModel(FakeModel(6, seed=3), VOCAB),
    "model, larger head": lambda: DraftModel(FakeModel(VOCAB, padding=4), VOCAB),
    "model, encoder-decoder": lambda: DraftModel(FakeModel(VOCAB, encoder=True), VOCAB),
    "lookup": PromptLookup,
    "ngram, own text": lambda: NGram(VOCAB),
    "ngram, table": lambda: NGram.count([(1, 2, 3, 4, 5, 6, 7, 0) * 2], VOCAB),
    "suffix, own text": SuffixDrafter,
    "suffix, past outputs": lambda: SuffixDrafter(past(), learn=False),
    "mix": lambda: Mix(DraftModel(FakeModel(VOCAB, seed=3), VOCAB), SuffixDrafter()),
    "mix, crossvocab": lambda: Mix(across(), SuffixDrafter()),
    "crossvocab": across,
    "selfspec": lambda: SelfSpec(Layered(VOCAB), 2),
}


@pytest.fixture(params=DRAFTERS)
def drafter(request: pytest.FixtureRequest) -> Drafter:
    return DRAFTERS[request.param]()


def standard(sampling: Sampling = SAMPLED, **settings: object) -> Standardiser:
    return Standardiser(sampling, PROMPT, **settings)


def stream(output: tuple[int, ...], attempt: int = 0, seed: int = 5) -> Independent:
    return Independent(Noise(seed), start=len(output), attempt=attempt)


def assert_drawn_from_its_laws(draft: Draft, vocab: int = VOCAB) -> None:
    for token, law in zip(draft.tokens, draft.laws, strict=True):
        assert 0 <= token < vocab
        assert law.prob(token) > 0
        if isinstance(law, Dense):
            assert law.probs.shape == (vocab,)
            assert law.probs.sum() == pytest.approx(1)


def generate(
    drafter: Drafter,
    target: FakeModel,
    tokens: int,
    prompt: tuple[int, ...] = PROMPT,
    sampling: Sampling = SAMPLED,
    after: Callable[[Proposer, int], None] = lambda proposer, emitted: None,
    lengths: tuple[int, ...] = (4,),
) -> list[Verdict]:
    """The obvious round loop with the block rule; `after` looks on once a round."""
    standardise = Standardiser(sampling, prompt)
    proposer = drafter.begin(prompt, standardise)
    output: list[int] = []
    verdicts = []
    while len(output) < tokens:
        attempt = len(verdicts)
        noise = Independent(Noise(11), len(output), attempt)
        draft = proposer.draft(tuple(output), lengths[attempt % len(lengths)], noise)
        laws = [
            standardise.law(
                target.logits_after((*prompt, *output, *draft.tokens[:i])),
                (*output, *draft.tokens[:i]),
            )
            for i in range(len(draft) + 1)
        ]
        verdict = block(draft, laws, noise)
        output += [*draft.tokens[: verdict.accepted], verdict.token]
        proposer.observe(verdict)
        after(proposer, len(output))
        verdicts.append(verdict)
    proposer.close()
    return verdicts


# --- the contract ---


def test_is_a_drafter(drafter: Drafter) -> None:
    assert isinstance(drafter, Drafter)
    assert drafter.name


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("output", [(), (3,), (3, 1, 2)])
def test_limit_and_laws(
    drafter: Drafter, sampling: Sampling, limit: int, output: tuple[int, ...]
) -> None:
    proposer = drafter.begin(PROMPT, standard(sampling))
    draft = proposer.draft(output, limit, stream(output))
    assert 1 <= len(draft) <= limit  # the prompt repeats itself: all of them find something
    assert_drawn_from_its_laws(draft)
    assert draft.certain or sampling is SAMPLED
    proposer.close()


def test_the_laws_of_a_draft_are_its_own() -> None:
    """Drafting goes on in the same memory; a law that was handed out does not change with it."""
    model = FakeModel(6, seed=3)
    standardise = standard()
    proposer = DraftModel(model, VOCAB).begin(PROMPT, standardise)
    draft = proposer.draft((), 4, stream(()))
    proposer.draft((3,), 4, stream((3,)))
    for i, law in enumerate(draft.laws):
        row = np.full(VOCAB, -np.inf, dtype=np.float32)
        row[:6] = model.logits_after((*PROMPT, *draft.tokens[:i]))
        expected = standardise.law(row, draft.tokens[:i])
        assert isinstance(law, Dense)
        assert isinstance(expected, Dense)
        assert law.probs.tolist() == expected.probs.tolist()


def test_a_draft_is_a_function_of_output_and_stream(drafter: Drafter) -> None:
    def drafts(attempts: int) -> Draft:
        proposer = drafter.begin(PROMPT, standard())
        for attempt in range(attempts):
            proposer.draft((), 3, stream((), attempt))
            proposer.observe(Verdict(0, 3, "residual"))
        draft = proposer.draft((3, 1), 4, stream((3, 1)))
        proposer.close()
        return draft

    first, second = drafts(0), drafts(3)
    assert first.tokens == second.tokens
    for one, other in zip(first.laws, second.laws, strict=True):
        assert [one.prob(x) for x in range(VOCAB)] == [other.prob(x) for x in range(VOCAB)]


def test_what_was_observed_as_rejected_leaves_no_trace(drafter: Drafter) -> None:
    """Rounds of any outcome, then a draft equal to that of a proposer that met none of them."""
    target = FakeModel(VOCAB, seed=9)
    outputs: list[int] = []

    def compare(proposer: Proposer, emitted: int) -> None:
        outputs.append(emitted)

    verdicts = generate(drafter, target, 40, after=compare, lengths=(1, 4, 2))
    assert {v.kind for v in verdicts} & {"residual"}
    output: list[int] = []
    old = drafter.begin(PROMPT, standard())
    for attempt in range(12):
        noise = stream(tuple(output), attempt)
        new = drafter.begin(PROMPT, standard())
        draft = old.draft(tuple(output), 4, noise)
        assert draft.tokens == new.draft(tuple(output), 4, noise).tokens
        new.close()
        accepted = attempt % (len(draft) + 1)
        output += [*draft.tokens[:accepted], attempt % VOCAB]
        old.observe(Verdict(accepted, attempt % VOCAB, "residual"))
    old.close()


def test_interleaved_requests_do_not_meet(drafter: Drafter) -> None:
    prompts = [(1, 2, 3, 1, 2), (4, 5, 4, 5, 4), (7, 7, 7, 0, 7)]

    def drafts(order: list[int]) -> dict[int, list[Draft]]:
        proposers = {i: drafter.begin(prompts[i], standard()) for i in set(order)}
        outputs: dict[int, tuple[int, ...]] = dict.fromkeys(order, ())
        made: dict[int, list[Draft]] = {i: [] for i in order}
        for i in order:
            draft = proposers[i].draft(outputs[i], 3, stream(outputs[i], len(made[i]), seed=i))
            made[i].append(draft)
            proposers[i].observe(Verdict(0, i + 1, "residual"))
            outputs[i] = (*outputs[i], i + 1)
        for proposer in proposers.values():
            proposer.close()
        return made

    together = drafts([0, 1, 2, 2, 1, 0, 0, 2, 1])
    for i in range(3):
        alone = drafts([i] * 3)[i]
        assert [d.tokens for d in together[i]] == [d.tokens for d in alone]


def test_the_shared_stream_serves_too(drafter: Drafter) -> None:
    proposer = drafter.begin(PROMPT, standard())
    assert_drawn_from_its_laws(proposer.draft((), 4, Shared(Noise(2), 0)))
    proposer.close()


# --- a draft model ---


def test_self_draft_is_always_accepted() -> None:
    target = FakeModel(VOCAB, seed=1)
    verdicts = generate(DraftModel(target, VOCAB), target, 60)
    assert all(v.accepted == 4 for v in verdicts)
    unrelated = generate(DraftModel(FakeModel(VOCAB, seed=2), VOCAB), target, 60)
    assert not all(v.accepted == 4 for v in unrelated)  # the control


def test_draft_cache_holds_committed_tokens_only() -> None:
    """G6: behind the output by 1, or 2 after a bonus; one pass per drafted token; over 500."""
    target = FakeModel(VOCAB, seed=1)
    model = FakeModel(VOCAB, near=target, distance=0.5, seed=2)
    gaps = []

    def look(proposer: Proposer, emitted: int) -> None:
        gaps.append(len(PROMPT) + emitted - proposer.length)  # type: ignore[attr-defined]

    verdicts = generate(DraftModel(model, VOCAB), target, 500, after=look)
    assert [2 if v.kind == "bonus" else 1 for v in verdicts] == gaps
    assert set(gaps) == {1, 2}
    assert model.sessions[0].passes == 1 + 4 * len(verdicts)  # 1 for the prompt
    assert model.sessions[0].closed
    half = len(verdicts) // 2
    early, late = (
        np.mean([v.accepted for v in part]) for part in (verdicts[:half], verdicts[half:])
    )
    assert late > 0.8 * early


def test_the_cache_catches_up_after_rounds_without_it() -> None:
    model = FakeModel(VOCAB, seed=4)
    proposer = DraftModel(model, VOCAB).begin(PROMPT, standard(GREEDY))
    proposer.draft((), 3, stream(()))
    proposer.observe(Verdict(0, 7, "residual"))
    output = (7, 0, 1, 4, 4, 2)
    draft = proposer.draft(output, 3, stream(output))
    assert list(draft.tokens) == model.plain((*PROMPT, *output), 3)


def test_an_output_that_departs_from_the_draft_is_rescored() -> None:
    """Even without `observe`, the cache follows the output that is passed in."""
    model = FakeModel(VOCAB, seed=4)
    proposer = DraftModel(model, VOCAB).begin(PROMPT, standard(GREEDY))
    drafted = proposer.draft((), 4, stream(())).tokens
    output = (drafted[0], (drafted[1] + 1) % VOCAB, 5)
    draft = proposer.draft(output, 3, stream(output))
    assert list(draft.tokens) == model.plain((*PROMPT, *output), 3)


def test_padded_vocabularies() -> None:
    """E1: target 512 rows, draft 500, tokenizer 490: no id from 490 is drafted, none is refused."""
    target = FakeModel(490, seed=1, padding=22)
    model = FakeModel(490, seed=2, padding=10, padding_logit=20.0)  # padding the most probable
    drafter = DraftModel(model, target.vocab_size, allowed=490)
    drafted = []
    proposer = drafter.begin(PROMPT, standard())
    for attempt in range(40):
        draft = proposer.draft((), 4, stream((), attempt))
        assert_drawn_from_its_laws(draft, 512)
        assert all(law.prob(x) == 0 for law in draft.laws for x in range(490, 512))
        drafted += draft.tokens
        proposer.observe(Verdict(0, 0, "residual"))
    assert max(drafted) < 490
    unmasked = DraftModel(model, 512).begin(PROMPT, standard(GREEDY))
    assert unmasked.draft((), 1, stream(())).tokens[0] >= 490  # the control
    output = (505, 511)  # the target may emit what the draft has no row for
    assert len(proposer.draft(output, 4, stream(output))) == 4
    assert len(drafter.begin((1, 505), standard()).draft((), 4, stream(()))) == 4


def test_allowed_ids_may_be_any_set() -> None:
    drafter = DraftModel(FakeModel(6, seed=3), VOCAB, allowed={1, 4, 7})  # 7: the draft lacks it
    draft = drafter.begin(PROMPT, standard()).draft((), 8, stream(()))
    assert set(draft.tokens) <= {1, 4}
    with pytest.raises(InvalidSetting, match="in common"):
        DraftModel(FakeModel(6), VOCAB, allowed={7})
    with pytest.raises(InvalidSetting, match="in common"):
        DraftModel(FakeModel(6), VOCAB, allowed=0)


def test_the_draft_ends_where_its_context_does() -> None:
    model = FakeModel(VOCAB, context_length=10)
    proposer = DraftModel(model, VOCAB).begin(PROMPT, standard(GREEDY))
    for output, drafted in [((), 6), ((1, 2, 3, 4), 2), ((1, 2, 3, 4, 5), 1), ((1,) * 6, 0)]:
        assert len(proposer.draft(output, 9, stream(output))) == drafted
        proposer.observe(Verdict(0, 0, "residual"))
    assert model.sessions[0].length <= 10
    with pytest.raises(PromptTooLong):
        DraftModel(FakeModel(VOCAB, context_length=4), VOCAB).begin(PROMPT, standard())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_bad_logits_are_named_with_the_position(bad: float) -> None:
    model = FakeModel(VOCAB, name="tiny", fail_at=6, fail_with=bad)
    proposer = DraftModel(model, VOCAB).begin(PROMPT, standard())
    with pytest.raises(BadLogits, match=r"tiny .* position 6"):
        proposer.draft((), 5, stream(()))


def test_bans_that_leave_the_draft_nothing_end_the_draft() -> None:
    banned = (*((token,) for token in range(6)), (7, 7))
    standardise = standard(Sampling(temperature=1.0, banned=banned))  # the target still has 6, 7
    proposer = DraftModel(FakeModel(6), VOCAB).begin(PROMPT, standardise)
    assert len(proposer.draft((), 3, stream(()))) == 0
    proposer.observe(Verdict(0, 7, "plain"))
    assert len(proposer.draft((7,), 3, stream((7,)))) == 0


def test_the_draft_follows_the_requests_settings() -> None:
    model = FakeModel(VOCAB, seed=3)
    settings = Sampling(temperature=0.7, top_k=3, frequency_penalty=0.8, logit_bias={2: 1.5})
    standardise = standard(settings)
    draft = DraftModel(model, VOCAB).begin(PROMPT, standardise).draft((2,), 5, stream((2,)))
    for i, law in enumerate(draft.laws):
        before = (2, *draft.tokens[:i])
        expected = standardise.law(model.logits_after((*PROMPT, *before)), before)
        assert isinstance(law, Dense)
        assert isinstance(expected, Dense)
        assert np.array_equal(law.probs, expected.probs)


def test_a_session_that_fails_in_the_prompt_is_closed() -> None:
    class Broken(FakeModel):
        def spend(self, tokens: int) -> None:
            raise MemoryError

    model = Broken(VOCAB)
    proposer = DraftModel(model, VOCAB).begin(PROMPT, standard())
    with pytest.raises(MemoryError):
        proposer.draft((), 2, stream(()))
    proposer.close()
    assert model.open_sessions == 0


def test_a_broken_rewind_would_show() -> None:
    """The control of the fake itself: rewinding past the cache is caught."""
    session = FakeModel(VOCAB).open(PROMPT)
    session.score(PROMPT, keep=1)
    with pytest.raises(BrokenContract, match="rewind"):
        session.rewind(6)


# --- the target's own layers ---


def test_self_speculation_is_a_draft_model_of_fewer_layers() -> None:
    target = Layered(VOCAB, name="big")
    drafter = SelfSpec(target, 3, allowed=7)
    assert (drafter.name, drafter.model.name, drafter.vocab_size) == ("selfspec", "big", VOCAB)
    draft = drafter.begin(PROMPT, standard()).draft((), 4, stream(()))
    assert max(draft.tokens) < 7
    assert set(draft.sources) == {"selfspec"}
    few, most = (generate(SelfSpec(target, layers), target, 60) for layers in (1, 3))
    assert len(most) < len(few)  # rounds


def test_self_speculation_refuses_by_name() -> None:
    with pytest.raises(UnsupportedModel, match=r"big .* first layers"):
        SelfSpec(FakeModel(VOCAB, name="big"), 1)
    for layers in (0, 4):
        with pytest.raises(InvalidSetting, match=f"layers is {layers}, and fake has 4"):
            SelfSpec(Layered(VOCAB), layers)


# --- lookup ---


@pytest.mark.parametrize(
    ("prompt", "output", "limit", "drafted"),
    [
        ((5, 6, 7, 8, 9), (6, 7), 5, (8, 9, 6, 7, 8)),  # the worked example
        ((1, 2, 3), (1, 2, 3), 8, (1, 2, 3, 1, 2, 3, 1, 2)),  # periodic
        ((4, 4), (4,), 3, (4, 4, 4)),
        ((1, 2, 9, 3, 2, 8), (1, 2), 2, (9, 3)),  # longer before more recent
        ((5, 2, 9, 6, 2, 8), (7, 2), 2, (8, 7)),  # more recent among equals
        ((1, 2, 3, 4), (), 4, ()),  # nothing repeats; the end does not match itself
        ((1,), (), 4, ()),
        ((1,), (1,), 2, (1, 1)),
    ],
)
def test_lookup_copies(
    prompt: tuple[int, ...], output: tuple[int, ...], limit: int, drafted: tuple[int, ...]
) -> None:
    at_once = PromptLookup().begin(prompt, standard())
    assert at_once.draft(output, limit, stream(output)).tokens == drafted
    grown = PromptLookup().begin(prompt, standard())
    for i in range(len(output) + 1):
        draft = grown.draft(output[:i], limit, stream(output))
        assert draft.certain
    assert draft.tokens == drafted


def test_lookup_equals_the_obvious_search() -> None:
    """Against a search through the whole text, on 300 random texts over 4 tokens."""
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(300):
        text = tuple(int(x) for x in rng.integers(4, size=int(rng.integers(1, 30))))
        cut = int(rng.integers(len(text)))
        low, high = sorted(int(x) for x in rng.integers(1, 5, size=2))
        drafter = PromptLookup(max_match=high, min_match=low)
        proposer = drafter.begin(text[:cut], standard())
        got = proposer.draft(text[cut:], 4, stream(())).tokens
        assert got == _search(text, low, high, 4)
        found += bool(got)
    assert 50 < found < 300


def _search(text: tuple[int, ...], low: int, high: int, limit: int) -> tuple[int, ...]:
    for n in range(high, low - 1, -1):
        for at in range(len(text) - 1, n - 1, -1):
            if text[at - n : at] == text[len(text) - n :]:
                copy = list(text)
                for i in range(limit):
                    copy.append(copy[at + i])
                return tuple(copy[len(text) :])
    return ()


def test_lookup_in_features_is_lookup_in_the_output() -> None:
    features = np.zeros((4, 10), dtype=np.float32)
    for drafter in (PromptLookup(), NGram(VOCAB), SuffixDrafter()):
        proposer = drafter.begin(features, standard(GREEDY))
        assert proposer.draft((), 3, stream(())).tokens == ()
        assert proposer.draft((1, 2, 1), 2, stream(())).tokens == (2, 1)


@pytest.mark.parametrize(("low", "high"), [(0, 3), (4, 3), (-1, -1)])
def test_lookup_refuses_lengths(low: int, high: int) -> None:
    with pytest.raises(InvalidSetting, match="min_match"):
        PromptLookup(max_match=high, min_match=low)


# --- n-grams ---


def law_after(drafter: NGram, prompt: tuple[int, ...], sampling: Sampling) -> list[float]:
    law = drafter.begin(prompt, Standardiser(sampling)).draft((), 1, stream(())).laws[0]
    return [law.prob(token) for token in range(drafter.vocab_size)]


def test_the_longest_context_decides() -> None:
    """Counted by hand; the prompt's own counts are part of them."""
    table = NGram.count([(0, 1, 2), (0, 1, 2), (0, 1, 3), (4, 1, 5)], vocab_size=6)
    at_one = Sampling(temperature=1.0)
    assert law_after(table, (0, 1), at_one) == pytest.approx([0, 0, 2 / 3, 1 / 3, 0, 0])
    assert law_after(table, (2, 1), at_one) == pytest.approx([0, 0, 0.5, 0.25, 0, 0.25])
    # unigrams: 3, 4, 2, 1, 1, 1 in the table and one more 5 and 3 in the prompt
    assert law_after(table, (5, 3), at_one) == pytest.approx([x / 14 for x in (3, 4, 2, 2, 1, 2)])
    assert law_after(table, (0, 1), GREEDY) == [0, 0, 1, 0, 0, 0]


def test_temperature_sharpens_the_counts() -> None:
    table = NGram.count([(0, 1, 2), (0, 1, 2), (0, 1, 3)], vocab_size=4)
    half = law_after(table, (0, 1), Sampling(temperature=0.5))
    assert half == pytest.approx([0, 0, 4 / 5, 1 / 5])


def test_bans_back_off() -> None:
    table = NGram.count([(0, 1, 2), (4, 1, 5)], vocab_size=6)
    assert law_after(table, (0, 1), Sampling(banned=((2,),))) == [0, 0, 0, 0, 0, 1]
    everything = Sampling(banned=tuple((token,) for token in (0, 1, 2, 4, 5)))
    proposer = table.begin((0, 1), Standardiser(everything))
    assert len(proposer.draft((), 2, stream(()))) == 0  # 3 was never counted


def test_requests_leave_the_table_alone() -> None:
    table = NGram.count([(0, 1, 2)], vocab_size=6)
    before = {context: dict(followers) for context, followers in table.table.items()}
    proposer = table.begin((0, 1, 5, 0, 1, 5), Standardiser(GREEDY))
    assert proposer.draft((0, 1), 1, stream(())).tokens == (5,)  # seen twice, 2 once
    assert table.table == before


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_tables_survive_the_disk(order: int, tmp_path: Path) -> None:
    table = NGram.count([(0, 1, 2, 0, 1, 3), (4,), ()], vocab_size=6, order=order)
    path = tmp_path / "counts.npz"
    table.save(path)
    first = path.read_bytes()
    table.save(path)
    assert path.read_bytes() == first
    loaded = NGram.load(path)
    assert (loaded.table, loaded.order, loaded.vocab_size) == (table.table, order, 6)
    assert [p.name for p in tmp_path.iterdir()] == ["counts.npz"]
    assert NGram.load(path, vocab_size=6).table == table.table
    with pytest.raises(TokenizerMismatch, match="of 6, not 7"):
        NGram.load(path, vocab_size=7)


def test_damaged_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "counts.npz"
    NGram.count([(0, 1, 2, 0, 1, 3)], vocab_size=6).save(path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for damage in (whole[: len(whole) // 2], b"", b"text", bytes(flipped)):
        path.write_bytes(damage)
        with pytest.raises(ModelCorrupt, match=r"counts\.npz"):
            NGram.load(path)
    for arrays in (
        {"version": np.array([99, 6, 3])},
        {"version": np.array([1, 6, 3])},
        {"version": np.array([1, 6, 1]), "n1": np.array([[6, 1]])},
        {"version": np.array([1, 6, 1]), "n1": np.array([[5, 0]])},
        {"version": np.array([1, 6, 1]), "n1": np.array([1, 2])},
    ):
        with path.open("wb") as file:
            np.savez(file, **arrays)
        with pytest.raises(ModelCorrupt):
            NGram.load(path)
    np.save(path.with_suffix(".npy"), np.zeros(3))
    with pytest.raises(ModelCorrupt):
        NGram.load(path.with_suffix(".npy"))
    with pytest.raises(ModelNotFound):
        NGram.load(tmp_path / "nowhere.npz")


def test_ngram_refuses_foreign_tokens_and_orders() -> None:
    with pytest.raises(InvalidSetting, match="token 6"):
        NGram.count([(1, 6)], vocab_size=6)
    with pytest.raises(DraftproofError, match="order"):
        NGram(6, order=0)


def test_ngram_greedy_drafts_are_certain() -> None:
    draft = NGram(VOCAB).begin(PROMPT, standard(GREEDY)).draft((), 4, stream(()))
    assert draft.tokens == (3, 1, 2, 3)
    assert all(isinstance(law, PointMass) for law in draft.laws)
