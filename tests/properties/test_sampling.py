"""Laws follow from logits as documented: by an oracle in plain Python, by hand, at the edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from draftproof.core import Dense, PointMass
from draftproof.errors import InvalidSetting
from draftproof.sampling import (
    FAINT,
    Sampling,
    Standardiser,
    check_vocabulary,
    log_softmax,
    most_probable,
    nucleus,
)

LOG = math.log


def row(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def probs(
    standardiser: Standardiser | Sampling, logits: np.ndarray, output: Sequence[int] = ()
) -> np.ndarray:
    """The law as a vector, point masses too."""
    if isinstance(standardiser, Sampling):
        standardiser = Standardiser(standardiser)
    law = standardiser.law(logits, output)
    if isinstance(law, Dense):
        return law.probs
    return np.eye(len(logits))[law.token]


# --- the oracle: the module's docstring, step by step, on Python floats ---------------------------


def f32(value: float) -> float:
    return float(np.float32(value))


def undecided(near: bool) -> None:
    """Skip an example in which rounding decides what a filter keeps."""
    if near:
        reject()


def scores_by_hand(s: Standardiser, logits: np.ndarray, output: Sequence[int]) -> list[float]:
    z = [float(x) for x in logits]
    history = [*s.prompt, *output]
    for i in range(len(z)):
        if i in history:
            penalty = s.sampling.repetition_penalty
            z[i] = f32(z[i] / penalty if z[i] > 0 else z[i] * penalty)
        if i in output:
            count = list(output).count(i)
            penalty = s.sampling.presence_penalty + count * s.sampling.frequency_penalty
            z[i] = f32(z[i] - penalty)
        z[i] = f32(z[i] + s.sampling.logit_bias.get(i, 0.0))
        for banned in s.sampling.banned:
            n = len(banned) - 1
            if banned[-1] == i and (n == 0 or history[-n:] == list(banned[:-1])):
                z[i] = -math.inf
        if (len(output) < s.min_tokens and i in s.eos) or (not output and i in s.banned_first):
            z[i] = -math.inf
    return z


def law_by_hand(s: Standardiser, logits: np.ndarray, output: Sequence[int]) -> np.ndarray:
    z = scores_by_hand(s, logits, output)
    n, top = len(z), max(z)
    assert top > -math.inf
    if s.sampling.temperature == 0:
        return np.eye(n)[z.index(top)]
    w = [math.exp((x - top) / s.sampling.temperature) for x in z]
    if s.sampling.top_k is not None:
        edge = sorted(z, reverse=True)[min(s.sampling.top_k, n) - 1]
        w = [w[i] if z[i] >= edge else 0.0 for i in range(n)]
    if s.sampling.top_p < 1:
        total, held, kept = sum(w), 0.0, set()
        for i in sorted(range(n), key=lambda i: (-w[i], i)):
            if held >= s.sampling.top_p * total:
                break
            undecided(abs(held - s.sampling.top_p * total) < 1e-9)
            held += w[i]
            kept.add(i)
        undecided(abs(held - s.sampling.top_p * total) < 1e-9)
        w = [w[i] if i in kept else 0.0 for i in range(n)]
    if s.sampling.min_p > 0:
        floor = s.sampling.min_p * max(w)
        undecided(any(0 < abs(x - floor) < 1e-9 for x in w))
        w = [x if x >= floor else 0.0 for x in w]
    return np.array(w) / sum(w)


VOCAB = st.integers(1, 9)


@dataclass(frozen=True)
class Request:
    """What a law is made from; built in the tests, as strategies should make plain values."""

    sampling: dict[str, Any]
    where: dict[str, Any]
    values: list[float]
    output: tuple[int, ...]

    def build(self) -> tuple[Standardiser, np.ndarray, tuple[int, ...]]:
        return Standardiser(Sampling(**self.sampling), **self.where), row(*self.values), self.output


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A small vocabulary, logits with many ties, and any mix of settings."""
    n = draw(VOCAB)
    ids = st.integers(0, n - 1)
    values = draw(st.lists(st.integers(-12, 12).map(lambda i: i / 2), min_size=n, max_size=n))
    sampling = dict(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.7, 40.0])),
        top_k=draw(st.none() | st.integers(1, n + 2)),
        top_p=draw(st.just(1.0) | st.floats(0.01, 0.999)),
        min_p=draw(st.just(0.0) | st.floats(0.001, 1.0)),
        repetition_penalty=draw(st.just(1.0) | st.floats(0.5, 2.0)),
        presence_penalty=draw(st.just(0.0) | st.floats(-2, 2)),
        frequency_penalty=draw(st.just(0.0) | st.floats(-2, 2)),
        logit_bias=draw(st.dictionaries(ids, st.sampled_from([-math.inf, -100.0, -1.5, 2.0]))),
        banned=tuple(
            draw(st.lists(st.lists(ids, min_size=1, max_size=3).map(tuple), max_size=3)),
        ),
    )
    where = dict(
        prompt=tuple(draw(st.lists(ids, min_size=1, max_size=6))),
        eos=frozenset(draw(st.sets(ids, max_size=2))),
        min_tokens=draw(st.integers(0, 4)),
        banned_first=frozenset(draw(st.sets(ids, max_size=1))),
    )
    return Request(sampling, where, values, tuple(draw(st.lists(ids, max_size=5))))


@settings(max_examples=300, deadline=None)
@given(requests())
def test_law_is_the_documented_one(request_: Request) -> None:
    standardiser, logits, output = request_.build()
    assume(max(scores_by_hand(standardiser, logits, output)) > -math.inf)
    expected = law_by_hand(standardiser, logits, output)
    got = probs(standardiser, logits, output)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-12)
    assert got.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_array_equal(got > 0, expected > 0)


@settings(max_examples=100, deadline=None)
@given(requests())
def test_law_is_a_pure_function(request_: Request) -> None:
    """The logits stay as they are, and neither order nor repetition of calls changes a law."""
    standardiser, logits, output = request_.build()
    assume(max(scores_by_hand(standardiser, logits, output)) > -math.inf)
    before = logits.copy()
    logits.flags.writeable = False
    first = probs(standardiser, logits, output)
    for n in range(len(output) + 1):
        if max(scores_by_hand(standardiser, logits, output[:n])) > -math.inf:
            probs(standardiser, logits, output[:n])
    np.testing.assert_array_equal(probs(standardiser, logits, list(output)), first)
    np.testing.assert_array_equal(logits, before)


def test_the_oracle_notices_a_wrong_order_of_operations() -> None:
    """Negative control: min-p before top-k or temperature after top-p give other laws here."""
    logits = row(*np.log([0.4, 0.3, 0.2, 0.1]))
    right = Standardiser(Sampling(temperature=2.0, top_p=0.65))
    colder = Standardiser(Sampling(temperature=1.0, top_p=0.65))
    assert np.count_nonzero(law_by_hand(right, logits, ())) == 3
    assert np.count_nonzero(probs(right, logits)) == 3
    assert np.count_nonzero(probs(colder, logits)) == 2


# --- shortcuts over a large vocabulary keep what weighing every token would keep ------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(64, 5000),
    spread=st.sampled_from([0.01, 1.0, 3.0, 8.0]),
    grid=st.sampled_from([None, 0.5]),
    temperature=st.sampled_from([0.05, 0.7, 1.0, 3.0]),
    top_k=st.none() | st.integers(1, 300),
    top_p=st.just(1.0) | st.floats(0.01, 0.99999),
    min_p=st.just(0.0) | st.floats(0.0001, 1.0),
)
def test_large_vocabulary(
    seed: int,
    size: int,
    spread: float,
    grid: float | None,
    temperature: float,
    top_k: int | None,
    top_p: float,
    min_p: float,
) -> None:
    logits = np.random.default_rng(seed).normal(0, spread, size).astype(np.float32)
    if grid is not None:
        logits = (np.round(logits / grid) * grid).astype(np.float32)  # many ties
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = law_by_hand(Standardiser(sampling), logits, ())
    got = probs(sampling, logits)
    np.testing.assert_array_equal(got > 0, expected > 0)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 40.0])
def test_faint_tokens_move_the_law_by_less_than_a_ten_thousand_millionth(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst case: as many tokens as a large vocabulary has, all just faint enough.

    The control weighs tokens in float32 that are not faint, and is off by more.
    """
    rng = np.random.default_rng(0)
    scores = (-FAINT - rng.random(152_000)) * temperature
    scores[::50_000] = rng.normal(0, temperature, 4)
    logits = scores.astype(np.float32)
    logits[7] = -np.inf
    expected = np.exp((logits.astype(np.float64) - float(logits.max())) / temperature)
    expected /= expected.sum()
    sampling = Sampling(temperature=temperature)
    law = probs(sampling, logits)
    assert law[7] == 0
    assert np.abs(law - expected).sum() < 1e-10
    monkeypatch.setattr("draftproof.sampling.FAINT", 0.0)
    assert np.abs(probs(sampling, logits) - expected).sum() > 1e-9


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=7),
    st.integers(1, 15).map(lambda i: i / 16),
)
def test_nucleus_is_the_smallest_set_that_holds_top_p(exponents: list[int], top_p: float) -> None:
    """By brute force over every subset, on weights 1, 1/2, 1/4, 1/8, whose sums are exact.

    At a temperature of 1 / log 2 a score of -i has weight 2**-i up to one rounding, which the
    comparison allows for; among sets of equal size the heaviest wins, then the one of lower ids.
    """
    scores = -np.array(exponents, dtype=np.float32) + np.float32(min(exponents))
    weights = np.exp2(scores.astype(np.float64))
    total, n = weights.sum(), len(weights)
    enough = []
    for mask in range(1, 2**n):
        ids = [i for i in range(n) if mask >> i & 1]
        mass = weights[ids].sum()
        assume(mass != top_p * total)  # exactly at the edge: see the next test
        if mass > top_p * total:
            enough.append((len(ids), -mass, sorted(ids, key=lambda i: (-weights[i], i)), ids))
    kept = nucleus(scores, 0.0, 1 / LOG(2), top_p)
    assert sorted(kept.tolist()) == min(enough)[3]


def test_nucleus_that_holds_exactly_top_p_is_enough() -> None:
    np.testing.assert_array_equal(probs(Sampling(temperature=1.0, top_p=0.5), row(0, 0)), [1, 0])
    np.testing.assert_array_equal(
        probs(Sampling(temperature=1.0, top_p=0.75), row(0, 0, 0, 0)) > 0, [1, 1, 1, 0]
    )


def test_nucleus_looks_twice_where_the_first_look_does_not_decide() -> None:
    """One heavy token and 60,000 of e**-19 each: 0.03 % of the mass lies beyond the first look."""
    scores = np.full(60_001, -19.0, dtype=np.float32)
    scores[7] = 0
    tail = 60_000 * math.exp(-19)
    assert len(nucleus(scores, 0.0, 1.0, 1 / (1 + tail) - 1e-9)) == 1
    beyond = nucleus(scores, 0.0, 1.0, (1 + 0.5 * tail) / (1 + tail))
    assert len(beyond) == pytest.approx(30_001, abs=1)
    assert set(beyond.tolist()) <= set(range(30_003))


@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=400),
    st.data(),
)
def test_most_probable_keeps_ties(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    scores = np.array(values, dtype=np.float32)
    edge = sorted(values, reverse=True)[k - 1]
    np.testing.assert_array_equal(most_probable(scores, k), np.flatnonzero(scores >= edge))


# --- golden values on four tokens, by hand --------------------------------------------------------

QUARTERS = row(LOG(8), LOG(4), LOG(2), LOG(2))  # probabilities 8, 4, 2, 2 of 16


@pytest.mark.parametrize(
    ("sampling", "weights"),
    [
        (Sampling(temperature=1.0), [8, 4, 2, 2]),
        (Sampling(temperature=0.5), [64, 16, 4, 4]),
        (Sampling(temperature=2.0), [math.sqrt(8), 2, math.sqrt(2), math.sqrt(2)]),
        (Sampling(temperature=0.0), [1, 0, 0, 0]),
        (Sampling(temperature=1.0, top_k=1), [1, 0, 0, 0]),
        (Sampling(temperature=1.0, top_k=2), [8, 4, 0, 0]),
        (Sampling(temperature=1.0, top_k=3), [8, 4, 2, 2]),  # ties at the edge stay
        (Sampling(temperature=1.0, top_k=4), [8, 4, 2, 2]),
        (Sampling(temperature=1.0, top_k=99), [8, 4, 2, 2]),
        (Sampling(temperature=1.0, top_p=0.49), [1, 0, 0, 0]),
        (Sampling(temperature=1.0, top_p=0.74), [8, 4, 0, 0]),
        (Sampling(temperature=1.0, top_p=0.76), [8, 4, 2, 0]),  # of the tie, the lower id
        (Sampling(temperature=1.0, min_p=0.2), [8, 4, 2, 2]),
        (Sampling(temperature=1.0, min_p=0.3), [8, 4, 0, 0]),
        (Sampling(temperature=1.0, min_p=1.0), [1, 0, 0, 0]),
        # Top-k first: 8 of the 12 that it leaves are 0.667, so 0.6 needs one token, not two.
        (Sampling(temperature=1.0, top_k=2, top_p=0.6), [1, 0, 0, 0]),
        (Sampling(temperature=1.0, top_p=0.6), [8, 4, 0, 0]),
        # Temperature first: at 2, min-p compares 1.414 with 2.828.
        (Sampling(temperature=2.0, min_p=0.4), [math.sqrt(8), 2, math.sqrt(2), math.sqrt(2)]),
        (Sampling(temperature=1.0, logit_bias={2: LOG(8)}), [8, 4, 16, 2]),
        (Sampling(temperature=1.0, logit_bias={0: -math.inf}), [0, 4, 2, 2]),
        (Sampling(temperature=1.0, banned=((1,), (3,))), [8, 0, 2, 0]),
    ],
)
def test_golden(sampling: Sampling, weights: list[float]) -> None:
    expected = np.array(weights) / sum(weights)
    np.testing.assert_allclose(probs(sampling, QUARTERS), expected, rtol=1e-6)


def test_golden_penalties() -> None:
    """Prompt (3,), output (1, 1, 2): what each penalty counts."""
    logits = row(4, 4, -2, 2)

    def scores(**penalty: float) -> np.ndarray:
        standardiser = Standardiser(Sampling(temperature=1.0, **penalty), prompt=(3,))
        p = probs(standardiser, logits, (1, 1, 2))
        return np.log(p / p[0]) + 4

    np.testing.assert_allclose(scores(repetition_penalty=2.0), [4, 2, -4, 1], rtol=1e-6)
    np.testing.assert_allclose(scores(presence_penalty=0.5), [4, 3.5, -2.5, 2], rtol=1e-6)
    np.testing.assert_allclose(scores(frequency_penalty=0.5), [4, 3, -2.5, 2], rtol=1e-6)
    both = scores(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=0.25)
    np.testing.assert_allclose(both, [4, 0.5, -5.25, 1], rtol=1e-6)  # repetition comes first


# --- temperatures ---------------------------------------------------------------------------------


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=200))
def test_temperature_zero_is_the_lowest_of_the_best(values: list[int]) -> None:
    law = Standardiser(Sampling()).law(row(*values), ())
    assert law == PointMass(values.index(max(values)))


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-40, 1e-6])
@pytest.mark.parametrize("extra", [{}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}])
def test_tiny_temperature_is_the_argmax(temperature: float, extra: dict[str, Any]) -> None:
    p = probs(Sampling(temperature=temperature, **extra), row(-3e38, 5, 7, 3e38))
    np.testing.assert_array_equal(p, [0, 0, 0, 1])
    tied = probs(Sampling(temperature=temperature), row(7, 5, 7, -np.inf))
    np.testing.assert_array_equal(tied, [0.5, 0, 0.5, 0])


@pytest.mark.parametrize("temperature", [1e40, 1e300, 1.7e308])
@pytest.mark.parametrize("extra", [{}, {"top_p": 0.999}, {"top_k": 4}, {"min_p": 0.1}])
def test_huge_temperature_is_uniform(temperature: float, extra: dict[str, Any]) -> None:
    p = probs(Sampling(temperature=temperature, **extra), row(-3e30, 5, 7, 3e30))
    np.testing.assert_allclose(p, [0.25] * 4, rtol=1e-6)


def test_top_k_goes_by_score_where_the_temperature_levels_the_weights() -> None:
    p = probs(Sampling(temperature=1e300, top_k=2), row(1, 3, 2, 0))
    np.testing.assert_allclose(p, [0, 0.5, 0.5, 0], rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_extreme_but_finite_settings_keep_laws_finite(temperature: float) -> None:
    sampling = Sampling(
        temperature=temperature,
        repetition_penalty=1e-6,
        presence_penalty=-1e6,
        frequency_penalty=-1e6,
        logit_bias={0: 1e300, 1: -1e300},
    )
    p = probs(Standardiser(sampling, prompt=(2, 3)), row(1, 1, 3e38, -3e38), (2, 2))
    assert np.isfinite(p).all()
    assert p.sum() == 1
    assert p[1] == p[3] == 0


# --- bans -----------------------------------------------------------------------------------------

FLAT = row(0, 0, 0, 0)


@pytest.mark.parametrize(
    ("prompt", "output", "banned", "allowed"),
    [
        ((0, 1), (), (1, 2), [1, 1, 0, 1]),  # begins in the prompt
        ((0, 1), (2,), (1, 2, 3), [1, 1, 1, 0]),  # spans prompt and output
        ((0,), (1, 2), (1, 2, 3), [1, 1, 1, 0]),  # within output and draft
        ((0,), (1, 2, 0), (1, 2, 3), [1, 1, 1, 1]),  # interrupted
        ((0,), (3, 3), (3, 3, 3), [1, 1, 1, 0]),  # overlapping itself
        ((3,), (), (3, 3, 3), [1, 1, 1, 1]),  # longer than what there is
        ((), (), (2,), [1, 1, 0, 1]),
        ((), (), (0, 2), [1, 1, 1, 1]),  # nothing before
        ((), (0,), (0, 2), [1, 1, 0, 1]),
    ],
)
@pytest.mark.parametrize("kind", [tuple, list])
def test_banned_sequences(
    prompt: tuple[int, ...],
    output: tuple[int, ...],
    banned: tuple[int, ...],
    allowed: list[int],
    kind: type,
) -> None:
    standardiser = Standardiser(Sampling(temperature=1.0, banned=(banned,)), prompt=prompt)
    p = probs(standardiser, FLAT, kind(output))
    np.testing.assert_array_equal(p > 0, np.array(allowed) > 0)


def test_eos_waits_for_min_tokens() -> None:
    standardiser = Standardiser(Sampling(), eos=frozenset({0, 2}), min_tokens=2)
    logits = row(9, 1, 8, 2)
    assert standardiser.law(logits, ()) == PointMass(3)
    assert standardiser.law(logits, (3,)) == PointMass(3)
    assert standardiser.law(logits, (3, 3)) == PointMass(0)


def test_banned_first_holds_at_the_first_position_only() -> None:
    standardiser = Standardiser(Sampling(), prompt=(1,), banned_first=frozenset({0}))
    assert standardiser.law(row(9, 1), ()) == PointMass(1)
    assert standardiser.law(row(9, 1), (1,)) == PointMass(0)


def test_a_models_own_bans_may_name_ids_that_it_lacks() -> None:
    """An end-of-sequence id of -1, or one beyond the head, must not hit another token."""
    standardiser = Standardiser(
        Sampling(), eos=frozenset({-1, 99}), min_tokens=3, banned_first=frozenset({-2, 50})
    )
    assert standardiser.law(row(1, 2, 3, 9), ()) == PointMass(3)


def test_a_bias_of_minus_100_removes_a_token_and_minus_infinity_bans_it() -> None:
    """Case 13: in float64 exp(-100) is a probability of 4e-44, which no draw of 53 bits can hit."""
    p = probs(Sampling(temperature=1.0, logit_bias={0: -100.0}), row(5, 5))
    assert 0 < p[0] < 1e-43
    p = probs(Sampling(temperature=100.0, logit_bias={0: -math.inf}), row(5, 5))
    assert p[0] == 0
    assert Standardiser(Sampling(logit_bias={0: -100.0})).law(row(9, 1), ()) == PointMass(1)


def test_a_bias_cannot_bring_back_an_excluded_token() -> None:
    p = probs(Sampling(temperature=1.0, logit_bias={0: 1e300}), row(-np.inf, 0))
    np.testing.assert_array_equal(p, [0, 1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_everything_banned_is_refused(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, banned=((0,),), logit_bias={1: -math.inf})
    standardiser = Standardiser(sampling, eos=frozenset({2}), min_tokens=5)
    with pytest.raises(InvalidSetting, match="no token is allowed at output position 1"):
        standardiser.law(row(1, 2, 3), (0,))


def test_repetition_penalty_skips_prompt_tokens_beyond_the_head() -> None:
    standardiser = Standardiser(Sampling(repetition_penalty=4.0), prompt=(0, 7))
    assert standardiser.law(row(3, 2), ()) == PointMass(1)


# --- settings that are refused --------------------------------------------------------------------

NAN = math.nan


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("temperature", v) for v in (-0.1, NAN, math.inf)],
        *[("top_k", v) for v in (0, -3)],
        *[("top_p", v) for v in (0.0, -0.5, 1.01, NAN)],
        *[("min_p", v) for v in (-0.1, 1.5, NAN)],
        *[("repetition_penalty", v) for v in (0.0, -1.0, 1e-9, 1e9, NAN, math.inf)],
        *[("presence_penalty", v) for v in (NAN, math.inf, -math.inf, 1e9)],
        *[("frequency_penalty", v) for v in (NAN, math.inf, -math.inf, 1e9)],
        *[("logit_bias", {3: v}) for v in (NAN, math.inf)],
        ("banned", ((1, 2), ())),
    ],
)
def test_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Sampling(**{name: value})
    assert name in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("token", [-1, 10, 151_936])
def test_unknown_ids_are_refused_by_name(token: int) -> None:
    for sampling in (
        Sampling(logit_bias={2: 1.0, token: 1.0}),
        Sampling(banned=((1,), (2, token))),
        Sampling(banned=((token, 2),)),
    ):
        with pytest.raises(InvalidSetting, match=f"names token {token}\n.* from 0 to 9"):
            check_vocabulary(sampling, 10)


def test_known_ids_pass() -> None:
    check_vocabulary(Sampling(logit_bias={0: 1.0, 9: -1.0}, banned=((0,), (9, 9))), 10)


# --- log-probabilities ----------------------------------------------------------------------------


def test_log_softmax_is_of_the_raw_logits() -> None:
    logits = row(LOG(1), LOG(2), LOG(5), -np.inf)
    np.testing.assert_allclose(np.exp(log_softmax(logits)), [1 / 8, 2 / 8, 5 / 8, 0], rtol=1e-6)
    assert np.exp(log_softmax(row(3e38, -3e38, 0))).tolist() == [1, 0, 0]
    np.testing.assert_array_equal(logits, row(LOG(1), LOG(2), LOG(5), -np.inf))
