"""The noise: a pure function of its address, uniform, independent, and fresh in every round.

Every random test here has fixed seeds. The rates in its docstring are those before the seeds were
fixed: how often right code would fail, and how often the named wrong code would pass.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from chances import miss_rate, p_value
from enumeration import Prefix, decode, draft_from
from hypothesis import given
from hypothesis import strategies as st
from lawcases import prefixes

from draftproof.core import Dense, PointMass
from draftproof.errors import InvalidSetting
from draftproof.rng import PART, SEEDS, Independent, Noise, Purpose, Shared, inverse_cdf, race
from draftproof.verify import block, coupled, token

FALSE_ALARM = 1e-6

seeds = st.integers(0, SEEDS - 1)
purposes = st.sampled_from(list(Purpose))
positions = st.integers(0, 2**40)
attempts = st.integers(0, 2**40)

# ------------------------------------------------------------------------ addresses


@given(seeds, purposes, positions, attempts, st.integers(1, 40), st.integers(0, 40))
def test_noise_is_a_function_of_its_address(
    seed: int, purpose: Purpose, position: int, attempt: int, short: int, more: int
) -> None:
    """Whatever else was drawn before, and a longer run begins with the shorter one."""
    busy = Noise(seed)
    busy.uniforms(Purpose.RACE, position, 100, attempt)
    busy.uniforms(purpose, position + 1, 3, attempt)
    long_run = busy.uniforms(purpose, position, short + more, attempt)
    short_run = Noise(seed).uniforms(purpose, position, short, attempt)
    assert long_run[:short].tobytes() == short_run.tobytes()


def philox4x64(counter: list[int], key: int) -> list[int]:
    """Ten rounds of Philox4x64 (Salmon et al. 2011), written as the paper has them."""
    mask = 2**64 - 1
    c, k = counter, [key, 0]
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [(b >> 64) ^ c[1] ^ k[0], b & mask, (a >> 64) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B97F4A7C15) & mask, (k[1] + 0xBB67AE8584CAA73B) & mask]
    return c


def test_philox_itself() -> None:
    """The generator's published known answer, for a counter and a key of zeros."""
    assert [f"{word:016x}" for word in philox4x64([0, 0, 0, 0], 0)] == [
        "16554d9eca36314c",
        "db20fe9d672d0fdc",
        "d7e772cee186176b",
        "7e68b68aec7ba23b",
    ]


@given(seeds, purposes, positions, attempts)
def test_the_bits_are_philox(seed: int, purpose: Purpose, position: int, attempt: int) -> None:
    """So a seed means the same on every machine and under every NumPy."""
    words = [
        word
        for block_number in (1, 2)
        for word in philox4x64([block_number, position, purpose, attempt], seed)
    ]
    expected = [((word >> 12) + 0.5) / 2**52 for word in words]
    assert Noise(seed).uniforms(purpose, position, 8, attempt).tolist() == expected


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_the_ends_of_the_interval_are_never_met(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Extreme:
        def __init__(self, **address: Any) -> None: ...

        def random_raw(self, count: int) -> np.ndarray:
            return np.full(count, word, dtype=np.uint64)

    monkeypatch.setattr(np.random, "Philox", Extreme)
    assert 0 < Noise(0).uniforms(Purpose.DRAFT, 0)[0] < 1


@pytest.mark.parametrize("seed", [-1, SEEDS])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(InvalidSetting, match="out of range"):
        Noise(seed)


def test_the_global_generators_are_untouched() -> None:
    law = Dense(np.array([0.25, 0.75]))
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002 it is what is watched
    for stream in (Independent(Noise(3), 0, 0), Shared(Noise(3), 0)):
        stream.draft(0, law)
        stream.target(1, law)
    Independent(Noise(3), 0, 0).accept(0, 0.5)
    assert before == (random.getstate(), repr(np.random.get_state()))  # noqa: NPY002


# ------------------------------------------------------------------------ uniform, independent

BINS, DRAWS, PAIRS = 8, 8000, 4000
UNIFORM = dict.fromkeys(range(BINS), Fraction(1, BINS))
SQUARE = dict.fromkeys(itertools.product(range(BINS), repeat=2), Fraction(1, BINS**2))

# How the addresses of a sequence of draws follow one another: (seed, purpose, position, attempt).
WALKS = {
    "positions": lambda i: (1, Purpose.ACCEPT, i, 0),
    "attempts": lambda i: (1, Purpose.ACCEPT, 7, i),
    "seeds": lambda i: (i, Purpose.ACCEPT, 7, 0),
    "a round a position": lambda i: (1, Purpose.DRAFT, i, i),
}
# A second address beside each one of a walk.
NEIGHBOURS = {
    "next position": lambda seed, purpose, position, attempt: (
        seed,
        purpose,
        position + 1,
        attempt,
    ),
    "next attempt": lambda seed, purpose, position, attempt: (seed, purpose, position, attempt + 1),
    "next seed": lambda seed, purpose, position, attempt: (seed + 1, purpose, position, attempt),
    "other purpose": lambda seed, purpose, position, attempt: (
        seed,
        Purpose(purpose + 1),
        position,
        attempt,
    ),
}


def uniform_at(address: tuple[int, Purpose, int, int]) -> float:
    seed, purpose, position, attempt = address
    return float(Noise(seed).uniforms(purpose, position, 1, attempt)[0])


@functools.cache
def bins(walk: Any, draws: int) -> list[int]:
    return [int(uniform_at(walk(i)) * BINS) for i in range(draws)]


@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)
def test_noise_is_uniform_along_a_walk(walk: Any) -> None:
    """Chi-square on 8 bins; false alarm 1e-6. A bin of mass 1/8 + 0.03 is missed below 1e-3."""
    bent = {**UNIFORM, 0: 1 / BINS + 0.03, 1: 1 / BINS - 0.03}
    assert miss_rate(UNIFORM, bent, DRAWS, FALSE_ALARM) < 1e-3
    assert p_value(Counter(bins(walk, DRAWS)), UNIFORM) > FALSE_ALARM


def test_a_field_is_uniform_and_its_elements_independent() -> None:
    """Neighbours in one long run, 64 cells; false alarm 1e-6."""
    field = (Noise(11).uniforms(Purpose.RACE, 5, 2 * DRAWS) * BINS).astype(int).tolist()
    pairs = Counter(zip(field[::2], field[1::2], strict=True))
    assert p_value(pairs, SQUARE) > FALSE_ALARM


@pytest.mark.parametrize("neighbour", NEIGHBOURS.values(), ids=NEIGHBOURS)
@pytest.mark.parametrize("walk", [WALKS["positions"], WALKS["attempts"]], ids=["p", "a"])
def test_neighbouring_addresses_are_independent(walk: Any, neighbour: Any) -> None:
    """Chi-square on 64 cells of pairs; false alarm 1e-6.

    A dependence that moves a tenth of the mass onto the diagonal is missed below 1e-9.
    """
    tied = {(a, b): 0.9 / BINS**2 + (0.1 / BINS if a == b else 0) for a, b in SQUARE}
    assert miss_rate(SQUARE, tied, PAIRS, FALSE_ALARM) < 1e-9
    second = bins(lambda i: neighbour(*walk(i)), PAIRS)
    assert p_value(Counter(zip(bins(walk, PAIRS), second, strict=True)), SQUARE) > FALSE_ALARM


def test_an_address_that_leaves_something_out_is_caught() -> None:
    """The control: an attempt that is not part of the address."""
    first = bins(WALKS["positions"], PAIRS)
    second = bins(lambda i: (1, Purpose.ACCEPT, i, 0), PAIRS)
    assert p_value(Counter(zip(first, second, strict=True)), SQUARE) < FALSE_ALARM


# ------------------------------------------------------------------------ draws

uniforms = st.floats(2.0**-53, 1 - 2.0**-53)
masses = st.lists(
    st.one_of(st.just(0.0), st.floats(0, 1), st.floats(0, 1e-300)), min_size=1, max_size=9
).filter(any)


@given(masses, uniforms)
def test_a_draw_never_returns_a_token_without_mass(weights: list[float], uniform: float) -> None:
    assert weights[inverse_cdf(np.array(weights), uniform)] > 0


@pytest.mark.parametrize("tokens", [PART - 1, PART, PART + 1, 5 * PART + 7])
def test_a_draw_finds_the_interval_among_many(tokens: int) -> None:
    """Up to the rounding of sums; a fifth of the tokens, and one part of them all, have no mass."""
    rng = np.random.default_rng(tokens)
    probs = rng.random(tokens) * (rng.random(tokens) < 0.8)
    probs[2 * PART : 3 * PART] = 0.0
    ends = np.cumsum(probs)
    for uniform in (2.0**-53, *rng.random(500), 1 - 2.0**-53):
        token, point = inverse_cdf(probs, uniform), uniform * ends[-1]
        assert probs[token] > 0
        assert ends[token] - probs[token] - 1e-9 <= point <= ends[token] + 1e-9


def test_a_race_of_vanishing_masses_is_won_by_one_of_them() -> None:
    """Their quotients overflow, as those of no mass do."""
    assert race(np.array([0.0, 2e-309]), np.array([0.5, 0.5])) == 1


@given(masses, st.data())
def test_a_race_is_never_won_without_mass(weights: list[float], data: st.DataObject) -> None:
    field = data.draw(st.lists(uniforms, min_size=len(weights), max_size=len(weights)))
    assert weights[race(np.array(weights), np.array(field))] > 0


LAW = Dense(np.array([0.1, 0.0, 0.25, 0.6, 0.05]))


@pytest.mark.parametrize("stream", ["independent", "shared"])
def test_draws_follow_their_law(stream: str) -> None:
    """Chi-square; false alarm 1e-6, a shift of 0.05 between two tokens is missed below 1e-6."""
    law = dict(enumerate(LAW.probs.tolist()))
    moved = {**law, 2: law[2] + 0.05, 3: law[3] - 0.05}
    assert miss_rate(law, moved, DRAWS, FALSE_ALARM) < 1e-6
    noise = Noise(21)
    one = Independent(noise, 0, 0) if stream == "independent" else Shared(noise, 0)
    for draw in (one.draft, one.target):
        assert p_value(Counter(draw(i, LAW) for i in range(DRAWS)), law) > FALSE_ALARM


def test_coins_have_their_probability() -> None:
    """Chi-square; false alarm 1e-6, a coin of 0.35 is missed below 1e-6."""
    law = {True: 0.3, False: 0.7}
    assert miss_rate(law, {True: 0.35, False: 0.65}, DRAWS, FALSE_ALARM) < 1e-6
    stream = Independent(Noise(22), 0, 0)
    assert p_value(Counter(stream.accept(i, 0.3) for i in range(DRAWS)), law) > FALSE_ALARM


@given(seeds, positions)
def test_certain_choices(seed: int, start: int) -> None:
    independent, shared = Independent(Noise(seed), start, 4), Shared(Noise(seed), start)
    assert independent.accept(0, 1)
    assert not independent.accept(0, 0)
    for stream in (independent, shared):
        assert stream.draft(0, PointMass(3)) == stream.target(0, PointMass(3)) == 3


@given(seeds, positions, st.integers(0, 5), masses)
def test_shared_noise_is_met_again_in_every_round(
    seed: int, start: int, index: int, weights: list[float]
) -> None:
    """A position's choice depends on the seed, the position and the law alone.

    A law over a padded vocabulary, met first or later, changes nothing either.
    """
    law, padded = Dense(np.array(weights)), Dense(np.array([*weights, 0.0, 0.0]))
    stream = Shared(Noise(seed), start)
    chosen = stream.draft(index, law)
    assert chosen == stream.target(index, padded) == stream.target(index, law)
    assert chosen == Shared(Noise(seed), start + index).target(0, padded)


# ------------------------------------------------------------------------ rounds

# A fair coin. The drafter is certain of 1 first, certain of 0 after a 0, and right after a 1.
FAIR = Dense(np.array([0.5, 0.5]))
TARGET = dict.fromkeys(prefixes(2, 3), FAIR)
DRAFTS = {(): PointMass(1), (0,): PointMass(0), (1,): FAIR}
DRAFT = {prefix: DRAFTS[prefix[-1:]] for prefix in prefixes(2, 3)}
REQUESTS = 1500
COINS = dict.fromkeys(itertools.product(range(2), repeat=3), Fraction(1, 8))


def requests(rule: Any, *, fresh: bool) -> Iterator[Prefix]:
    """Outputs of three tokens, a seed each; not `fresh` leaves the attempt out of the address."""
    for seed in range(REQUESTS):
        noise = Noise(seed)

        def of_round(start: int, attempt: int) -> Independent:
            return Independent(noise, start, attempt if fresh else 0)  # noqa: B023 used at once

        output, _ = decode(rule, TARGET, draft_from(DRAFT, 2), 3, of_round)
        yield output


@pytest.mark.parametrize("rule", [token, block, coupled], ids=["token", "block", "coupled"])
def test_several_rounds_follow_the_targets_law(rule: Any) -> None:
    """Chi-square on the 8 outputs; false alarm 1e-6.

    What shared rounds give under `block` (`test_block_is_biased_where_rounds_share_noise` has it
    exactly) is missed below 1e-9.
    """
    shared = {x: Fraction(1, 4) if x[:2] == (0, 1) else p for x, p in COINS.items()}
    shared = {x: Fraction(0) if x[:2] == (0, 0) else p for x, p in shared.items()}
    assert sum(shared.values()) == 1
    assert miss_rate(COINS, shared, REQUESTS, FALSE_ALARM) < 1e-9
    assert p_value(Counter(requests(rule, fresh=True)), COINS) > FALSE_ALARM


def test_block_needs_the_attempt_in_the_address() -> None:
    """The control: rounds that share noise never begin with 00, and are caught."""
    counts = Counter(requests(block, fresh=False))
    assert p_value(counts, COINS) < FALSE_ALARM
    assert counts[0, 0, 0] + counts[0, 0, 1] == 0
