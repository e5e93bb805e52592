"""Drafting across vocabularies is exact: the output's law equals the target's, as rationals.

The target's tokens are a, b and ab, the draft's b, c, a and ba: a and b are common, and either
tokenizer merges what the other one does not, so that the text is cut anew after every round.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from enumeration import (
    Drafting,
    Prefix,
    Replay,
    RequestReplay,
    Rule,
    SharedReplay,
    accepted_tokens,
    decode,
    distance,
    law_of,
    output_law,
    round_law,
    target_law,
)
from fakes import FakeModel
from lawcases import prefixes, random_law
from tokenizers import Tokenizer, decoders, models

from draftproof.backends.cpu.tokenizer import FastTokenizer
from draftproof.core import Dense, Draft, Law, LogitRow, PointMass
from draftproof.drafters import CrossVocab, Mix, PastOutputs, SuffixDrafter
from draftproof.rng import Shared
from draftproof.verify import block, coupled, token

PROMPT = (0, 1)  # a, b


def bpe(*words: str, merges: Sequence[tuple[str, str]]) -> FastTokenizer:
    inner = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, list(merges)))
    inner.decoder = decoders.Fuse()
    return FastTokenizer(inner, "tiny")


TARGET_WORDS = bpe("a", "b", "ab", merges=[("a", "b")])
DRAFT_WORDS = bpe("b", "c", "a", "ba", merges=[("b", "a")])


class Weighing(FakeModel):
    """A draft whose logits are small whole numbers: weights, for `Rational`."""

    def logits_after(self, context: Sequence[int], memory: tuple[int, ...] = ()) -> np.ndarray:
        dice = np.random.default_rng([7, *context[-3:]])
        return dice.integers(1, 6, size=self.vocab_size).astype(np.float32)


class Rational:
    """Weights to a law, exactly; a logit of -inf is a weight of 0."""

    def law(self, logits: LogitRow, output: Sequence[int]) -> Law:
        weights = [Fraction(0) if x == -np.inf else Fraction(int(x)) for x in logits]
        return Dense(np.array(weights, dtype=object) / sum(weights))


class SharedStream(SharedReplay, Shared):  # type: ignore[misc]  # drafters ask what it is
    """A shared race that is enumerated."""


def crossvocab() -> CrossVocab:
    return CrossVocab(Weighing(4), DRAFT_WORDS, TARGET_WORDS, 3)


def drafting(g: int) -> Drafting:
    drafter = crossvocab()

    def draft(stream: Any, output: Prefix = (), limit: int = g) -> Draft:
        if limit < 1:
            return Draft()
        return drafter.begin(PROMPT, Rational()).draft(output, min(g, limit), stream)

    return draft


class Turns:
    """A guide by which a match drafts every other token, from the `first` one on."""

    nodes, branching, several, stopped = 8, False, False, ""

    def __init__(self, first: int) -> None:
        self.first, self.taken = first, 0

    def value(
        self,
        source: str,
        confidence: float | None = None,
        after: int | None = None,
        reads: int = 1,
    ) -> float:
        turn = self.taken % 2 == self.first
        return (2.0 if turn else 0.5) if source == "suffix" else 1.0

    def choose(self, options: Sequence[Sequence[tuple[str, float]]], after: int) -> tuple[int, int]:
        return 0, 0

    def take(self, source: str, confidence: float, after: int | None = None) -> None:
        self.taken += 1


def mixed(g: int, first: int) -> Drafting:
    """Matches beside it; ab, which the draft does not have, is among what they copy."""
    past = PastOutputs(3)
    past.add((0, 1, 2, 2, 0, 2, 1, 1, 0, 0, 2))
    mix = Mix(crossvocab(), SuffixDrafter(past, learn=False))

    def draft(stream: Any, output: Prefix = (), limit: int = g) -> Draft:
        if limit < 1:
            return Draft()
        proposer = mix.begin(PROMPT, Rational())
        return proposer.follow(output, min(g, limit), stream, Turns(first))

    return draft


def target(seed: int, longest: int) -> dict[Prefix, Law]:
    dice = random.Random(seed)
    return {prefix: random_law(dice, range(3), 3, True) for prefix in prefixes(3, longest)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("g", [1, 2, 3])
@pytest.mark.parametrize("rule", [token, block, coupled])
def test_one_round_is_exact(rule: Rule, g: int, seed: int) -> None:
    laws = target(seed, g + 1)
    assert output_law(rule, laws, drafting(g), g + 1) == target_law(laws, g + 1)


@pytest.mark.parametrize("rule", [token, block])
def test_rounds_are_exact_though_the_text_is_cut_anew(rule: Rule) -> None:
    laws = target(1, 3)

    def program(request: RequestReplay) -> Prefix:
        return decode(rule, laws, drafting(2), 3, request.round)[0]

    assert law_of(program, RequestReplay) == target_law(laws, 3)


@pytest.mark.parametrize("g", [1, 2, 3])
def test_strings_are_exact(g: int) -> None:
    """Certain choices, kept while the target chooses the same."""
    laws = target(2, g + 1)
    found = output_law(coupled, laws, drafting(g), g + 1, SharedStream)
    assert found == target_law(laws, g + 1)
    assert accepted_tokens(round_law(coupled, laws, drafting(g), SharedStream)) > 0


def test_drafts_are_of_common_tokens_or_certain() -> None:
    drafts = [drafting(3)(Replay()), drafting(3)(SharedStream())]
    assert all(law.prob(2) == 0 for law in drafts[0].laws)
    assert not drafts[0].certain
    assert drafts[1].certain


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("g", [1, 2, 3])
@pytest.mark.parametrize("rule", [token, block, coupled])
def test_with_matches_in_one_draft_it_is_exact(rule: Rule, g: int, first: int) -> None:
    laws = target(3, g + 1)
    stream = SharedStream if rule is coupled else Replay
    assert output_law(rule, laws, mixed(g, first), g + 1, stream) == target_law(laws, g + 1)


def test_matches_and_the_draft_take_turns() -> None:
    """The draft goes on behind tokens that it does not have, and matches behind its own."""
    for first in (0, 1):
        draft = mixed(3, first)(Replay())
        turns = ["suffix" if at % 2 == first else "crossvocab, fake" for at in range(3)]
        assert list(draft.sources) == turns
        assert not draft.certain
    assert mixed(3, 0)(Replay()).tokens[0] == 2
    written = mixed(3, 1)(SharedStream())  # until it writes c, which the target does not have
    assert set(written.sources) == {"suffix", "crossvocab, fake"}
    assert written.certain


# ------------------------------------------------------------------------ wrong


def unnormalised(stream: Any) -> Draft:
    """The common tokens' probabilities as the draft has them: their sum is below 1."""
    draft = drafting(1)(stream)
    weights = crossvocab().model.logits_after(DRAFT_WORDS.encode("ab"))  # type: ignore[attr-defined]
    total = sum(Fraction(int(x)) for x in weights)
    probs = [Fraction(int(weights[2])) / total, Fraction(int(weights[0])) / total, Fraction(0)]
    assert sum(probs) < 1
    assert draft.laws[0].prob(0) == probs[0] / sum(probs)
    return Draft(draft.tokens, (Dense(np.array(probs, dtype=object)),))


@pytest.mark.parametrize("rule", [token, block])
def test_a_law_that_was_not_renormalised_is_caught(rule: Rule) -> None:
    laws = target(1, 2)
    assert distance(output_law(rule, laws, unnormalised, 2), target_law(laws, 2)) > 0
    assert distance(output_law(rule, laws, drafting(1), 2), target_law(laws, 2)) == 0


def mislabelled(stream: Any) -> Draft:
    """A match's token under the law that the draft has there."""
    draft, own = mixed(1, 0)(stream), drafting(1)(Replay())
    assert draft.tokens == (2,)
    assert own.laws[0].prob(0) > 0
    law = Dense(np.array([own.laws[0].prob(x) / 2 for x in (0, 1)] + [Fraction(1, 2)]))
    return Draft(draft.tokens, (law,))


@pytest.mark.parametrize("rule", [token, block])
def test_a_match_under_the_drafts_law_is_caught(rule: Rule) -> None:
    laws = target(3, 2)
    assert distance(output_law(rule, laws, mislabelled, 2), target_law(laws, 2)) > 0
    assert distance(output_law(rule, laws, mixed(1, 0), 2), target_law(laws, 2)) == 0
    assert mixed(1, 0)(Replay()).laws == (PointMass(2),)
