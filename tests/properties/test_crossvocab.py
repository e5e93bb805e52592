"""Text in the tokens of two vocabularies: what they share, how it is cut anew, what is drafted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import tiny_vocabularies as tiny
from fakes import FakeModel
from texts import lines
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from draftproof.backends.cpu.tokenizer import FastTokenizer, GgufTokenizer
from draftproof.core import Dense, Draft, PointMass
from draftproof.drafters import CrossVocab
from draftproof.drafters.growth import Growth
from draftproof.drafters.unguided import UNGUIDED
from draftproof.errors import BadLogits, PromptTooLong, TokenizerMismatch, UnsupportedModel
from draftproof.ports import Guided
from draftproof.rng import Independent, Noise, Shared
from draftproof.sampling import Sampling, Standardiser
from draftproof.text import Retokenizer, Spelling, common_tokens, continuation
from draftproof.text.vocabulary import shared_ids

SAID = (
    "def mean(values):\n    total = sum(values)\n    return total / len(values)\n\n"
    "The small river was under the garden window again, and she's never had an answer: "
    "你好世界 今天天气很好 naïve café 😀🚀 counts 1234567 again.\n"
) * 3
SENTENCES = [
    *(SAID * 2).splitlines(),
    *(line for line in lines(300, seed=4) if not {"<", "▁"} & {*line}),
]
GREEDY, SAMPLED = Sampling(), Sampling(temperature=1.0)


@cache
def byte_level(vocab_size: int = 420, special: str = "<|im_end|>") -> FastTokenizer:
    """As GPT-2 cuts text; merges differ with the size."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[special, "<|pad|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(SENTENCES[:: 1 if vocab_size > 400 else 2], trainer)
    return FastTokenizer(inner, "byte-level")


@cache
def sentencepiece() -> FastTokenizer:
    """As Llama 2 cuts text: one space more at its beginning, bytes where a letter is unknown."""
    return GgufTokenizer(tiny.sentencepiece())


@cache
def wide_byte_level() -> FastTokenizer:
    """Merges across words, so that boundaries move far back."""
    return GgufTokenizer(tiny.byte_level("gpt-2"))


KINDS = {
    "byte-level": byte_level,
    "sentencepiece": sentencepiece,
    "other byte-level": wide_byte_level,
}
PAIRS = [(a, b) for a in KINDS for b in KINDS if a != b]
every_pair = pytest.mark.parametrize(("source", "reader"), PAIRS)


# ------------------------------------------------------------------------ what tokens stand for


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_stand_for_their_text(kind: str) -> None:
    tokenizer = KINDS[kind]()
    spelling = Spelling(tokenizer)
    assert set(spelling.bytes) | set(spelling.special) == set(tokenizer.vocabulary.values())
    for line in SENTENCES:
        tokens, ends = spelling.encode(line) or ((), ())
        assert tokens == tokenizer.encode(line, special=False)
        assert spelling.spell(tokens) in (line.encode(), b" " + line.encode())
        assert ends[-1:] == ((len(line.encode()),) if line else ())


def test_special_tokens_are_those_that_decoding_leaves_out() -> None:
    assert set(Spelling(byte_level()).special.values()) == {"<|im_end|>", "<|pad|>"}
    assert set(Spelling(sentencepiece()).special.values()) == {"<unk>", "<s>", "</s>"}
    assert set(Spelling(wide_byte_level()).special.values()) == set(tiny.CONTROLS)
    assert Spelling(sentencepiece()).opening == (1,)
    assert Spelling(byte_level()).opening == ()


@every_pair
def test_common_tokens_stand_for_the_same(source: str, reader: str) -> None:
    ours, theirs = Spelling(KINDS[source]()), Spelling(KINDS[reader]())
    common = common_tokens(ours, theirs, (10**6, 10**6))
    assert len(common) > 150
    assert list(common) == sorted(common)
    assert len(set(common.values())) == len(common)
    for mine, other in common.items():
        if mine in ours.special:
            assert ours.special[mine] == theirs.special[other]
        else:
            assert ours.bytes[mine] == theirs.bytes[other]
    few = common_tokens(ours, theirs, (200, 200))
    assert few == {mine: other for mine, other in common.items() if mine < 200 and other < 200}


def test_a_letter_goes_before_its_byte() -> None:
    spelling = Spelling(sentencepiece())
    assert spelling.bytes[sentencepiece().vocabulary["<0x61>"]] == b"a"
    assert spelling.ids()[b"a"] == sentencepiece().vocabulary["a"]


def test_nothing_in_common_is_refused() -> None:
    with pytest.raises(TokenizerMismatch, match="no token in common"):
        common_tokens(Spelling(byte_level()), Spelling(sentencepiece()), (1, 10**6))
    with pytest.raises(TokenizerMismatch):
        shared_ids(byte_level(), sentencepiece())  # no draft model that shares ids


# ------------------------------------------------------------------------ text cut anew


@every_pair
def test_text_that_grows_is_cut_as_the_whole_text_is(source: str, reader: str) -> None:
    """Whatever the pieces in which it comes; nothing of a character that is not complete."""
    draw = random.Random(0)
    ours, theirs = KINDS[source](), KINDS[reader]()
    mine, other = Spelling(ours), Spelling(theirs)
    held = 0
    for start in range(0, 160, 20):
        text = "\n".join(SENTENCES[start : start + 20])
        tokens = ours.encode(text, special=False)
        read = Retokenizer(mine, other, {})
        while read.read < len(tokens):
            read.extend(tokens[read.read : read.read + draw.choice([1, 1, 2, 5, 40])])
            data = mine.spell(tokens[: read.read])[source == "sentencepiece" :]
            so_far = data.decode(errors="ignore")
            assert text.startswith(so_far)
            assert read.whole == (so_far.encode() == data)
            held += not read.whole
            assert tuple(read.ids) == other.opening + theirs.encode(so_far, special=False)
    assert held > 20


def test_special_tokens_are_read_by_name_or_passed_over() -> None:
    ours, theirs = byte_level(), wide_byte_level()
    mine, other = Spelling(ours), Spelling(theirs)
    end, pad = (ours.vocabulary[name] for name in ("<|im_end|>", "<|pad|>"))
    common = common_tokens(mine, other, (10**6, 10**6))
    assert pad not in common
    read = Retokenizer(mine, other, {end: common[end]})
    read.extend([*ours.encode("the ri"), pad, *ours.encode("ver"), end, *ours.encode("the")])
    expected = [*theirs.encode("the river"), common[end], *theirs.encode("the")]
    assert read.ids == expected
    doubled = Retokenizer(other, Spelling(sentencepiece()), {theirs.vocabulary["<|im_end|>"]: 1})
    doubled.extend([theirs.vocabulary["<|im_end|>"], *theirs.encode("the")])
    assert doubled.ids == [1, *sentencepiece().encode("the", special=False)]  # one <s>, not two


@pytest.mark.parametrize("kind", KINDS)
def test_a_continuation_leaves_the_tokens_before_alone(kind: str) -> None:
    tokenizer = KINDS[kind]()
    spelling = Spelling(tokenizer)
    tokens = tokenizer.encode(SAID, special=False)
    same = total = 0
    for cut in range(20, len(tokens) - 40):
        text = tokenizer.decode(tokens[: cut + 10])[len(tokenizer.decode(tokens[:cut])) :]
        if "\ufffd" in tokenizer.decode(tokens[:cut]) + text:
            continue
        found = continuation(spelling, tokens[:cut], text)
        assert spelling.spell(found) == text.encode()
        same += found == tokens[cut : cut + 10]
        total += 1
    assert total > 100
    assert same > 0.95 * total  # where the text ends within a word, its end may be cut otherwise
    # Behind tokens that the tokenizer itself would not have chosen, too.
    split = tokenizer.encode("the riv", special=False)
    assert spelling.spell(continuation(spelling, split, "er")) == b"er"


# ------------------------------------------------------------------------ drafts


class Reciter(FakeModel):
    """Knows one text by heart, and goes on with it in its own tokens."""

    def __init__(self, tokenizer: FastTokenizer, text: str = SAID) -> None:
        super().__init__(max(tokenizer.vocabulary.values()) + 1, name="reciter", seed=6)
        self.spelling, self.text = Spelling(tokenizer), text.encode()

    def logits_after(self, context: Sequence[int], memory: tuple[int, ...] = ()) -> np.ndarray:
        row = super().logits_after(context)
        data = b"".join(self.spelling.bytes.get(token, b"") for token in context)
        said = data.removeprefix(b" ")
        if self.text.startswith(said) and len(said) < len(self.text):
            rest = self.text[len(said) : len(said) + 60].decode(errors="ignore")
            tokens = continuation(self.spelling, context, rest) if rest else ()
            row[list(tokens[:1])] += 15
        return row


class Counting:
    """A guide that goes on for a while; notes what it is told."""

    nodes, branching, several, stopped = 64, False, False, ""

    def __init__(self, worth: int = 64) -> None:
        self.worth, self.paid = worth, 0
        self.taken: list[float] = []

    def value(
        self,
        source: str,
        confidence: float | None = None,
        after: int | None = None,
        reads: int = 1,
    ) -> float:
        self.paid += confidence is None
        return 1.0 if len(self.taken) < self.worth else -1.0

    def choose(self, options: Sequence[Sequence[tuple[str, float]]], after: int) -> tuple[int, int]:
        return 0, 0

    def take(self, source: str, confidence: float, after: int | None = None) -> None:
        assert source == "crossvocab, reciter"
        assert 0 < confidence <= 1
        self.taken.append(confidence)


def pair(source: str, reader: str, model: FakeModel | None = None) -> CrossVocab:
    target, draft = KINDS[source](), KINDS[reader]()
    return CrossVocab(model or Reciter(draft), draft, target, max(target.vocabulary.values()) + 1)


def standard(prompt: Sequence[int], sampling: Sampling = GREEDY) -> Standardiser:
    return Standardiser(sampling, tuple(prompt))


def independent(output: Sequence[int] = ()) -> Independent:
    return Independent(Noise(1), len(output), 0)


@every_pair
def test_what_is_written_becomes_the_targets_tokens(source: str, reader: str) -> None:
    """A draft that knows the text: but for the last token, drafts are mostly the target's own.

    A draft may end within a word, whose beginning the target may cut otherwise than the whole. In
    the middle of a character nothing is drafted.
    """
    drafter = pair(source, reader)
    target = KINDS[source]()
    tokens = target.encode(SAID, special=False)
    prompt = tokens[:8]
    right = drafted = waited = 0
    for stream_of in (Shared, Independent):
        sampling = SAMPLED if stream_of is Shared else GREEDY
        proposer = drafter.begin(prompt, standard(prompt, sampling))
        at = 8
        while at < len(tokens) // 2:
            output = tokens[8:at]
            noise = Shared(Noise(1), at) if stream_of is Shared else independent(output)
            draft = proposer.draft(output, 5, noise)
            assert draft.certain
            if target.decode(tokens[:at]).endswith("\ufffd"):
                assert len(draft) == 0
                waited += 1
            else:
                assert 1 <= len(draft) <= 5
                sure = draft.tokens[:-1]
                right += sum(x == y for x, y in zip(sure, tokens[at:], strict=False))
                drafted += len(sure)
            kept = next(
                (i for i, x in enumerate(draft.tokens) if x != tokens[at + i]), len(draft.tokens)
            )
            at += kept + 1
        proposer.close()
    assert drafted > 40
    assert right > 0.6 * drafted
    assert source != "byte-level" or waited
    unrelated = FakeModel(drafter.model.vocab_size, name="reciter", seed=9)
    draft = (
        pair(source, reader, unrelated).begin(prompt, standard(prompt)).draft((), 5, independent())
    )
    assert draft.tokens[:2] != tokens[8:10]  # the control


@every_pair
def test_drawn_tokens_have_the_law_over_the_common_ones(source: str, reader: str) -> None:
    model = FakeModel(max(KINDS[reader]().vocabulary.values()) + 1, name="reciter", seed=8)
    drafter = pair(source, reader, model)
    prompt = KINDS[source]().encode("the small", special=False)
    proposer = drafter.begin(prompt, standard(prompt, SAMPLED))
    draft = proposer.draft((), 3, independent())
    read = [*drafter.draft.opening, *KINDS[reader]().encode("the small", special=False)]
    for token, law in zip(draft.tokens, draft.laws, strict=True):
        logits = model.logits_after(read).astype(np.float64)
        weights = {mine: np.exp(logits[own]) for mine, own in drafter.to_draft.items()}
        assert isinstance(law, Dense)
        assert np.flatnonzero(law.probs).tolist() == list(weights)
        expected = np.array([*weights.values()]) / sum(weights.values())
        assert law.probs[list(weights)] == pytest.approx(expected)
        read.append(drafter.to_draft[token])
    assert len(draft) == 3


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_guide_is_told_of_every_token(sampling: Sampling) -> None:
    drafter = pair("byte-level", "other byte-level")
    prompt = byte_level().encode(SAID[:40], special=False)
    proposer = drafter.begin(prompt, standard(prompt, sampling))
    assert isinstance(proposer, Guided)
    for worth in (0, 1, 3, 64):
        guide = Counting(worth)
        draft = proposer.follow((), 6, independent(), guide)
        assert len(draft) == len(guide.taken) == min(worth, 6)
        assert draft.sources == ("crossvocab, reciter",) * len(draft)
        assert guide.paid >= 1


@every_pair
@pytest.mark.parametrize("stream_of", [Shared, Independent])
def test_others_tokens_in_the_draft_are_read(
    source: str, reader: str, stream_of: type[Shared] | type[Independent]
) -> None:
    """The draft goes on behind what another drafter put there."""
    drafter = pair(source, reader)
    tokens = KINDS[source]().encode(SAID, special=False)
    prompt, sampling = tokens[:8], SAMPLED if stream_of is Shared else GREEDY
    noise = Shared(Noise(1), 0) if stream_of is Shared else independent()
    right = 0
    for others in range(1, 17):
        proposer = drafter.begin(prompt, standard(prompt, sampling))
        proposer.start(())
        growth = Growth(())
        for token in tokens[8 : 8 + others]:
            growth.extend(token, PointMass(token), "other")
        whole = not KINDS[source]().decode(tokens[: 8 + others]).endswith("\ufffd")
        grown = [proposer.grow(growth, noise, UNGUIDED) for _ in range(2)]
        assert grown == [whole, whole]
        assert growth.trunk[:others] == list(tokens[8 : 8 + others])
        right += growth.trunk[: others + 1] == list(tokens[8 : 9 + others])
        assert set(growth.draft().sources) == {"other", drafter.name} if whole else {"other"}
        proposer.close()
    assert right > 8


def test_only_the_end_of_the_cache_is_computed_again() -> None:
    drafter = pair("byte-level", "other byte-level")
    tokens = byte_level().encode(SAID, special=False)
    proposer = drafter.begin(tokens[:150], standard(tokens[:150]))
    proposer.draft((), 4, independent())
    session = drafter.model.sessions[-1]  # type: ignore[attr-defined]
    rows = session.rows
    for at in range(151, 190, 3):
        passes = session.passes
        proposer.draft(tokens[150:at], 4, independent(tokens[150:at]))
        assert session.rows - rows <= (session.passes - passes) + 12
        rows = session.rows
    assert drafter.model.sessions[-1] is session  # type: ignore[attr-defined]
    assert proposer.reading_seconds > 0
    proposer.close()
    assert drafter.model.open_sessions == 0  # type: ignore[attr-defined]


def test_a_prompt_shorter_than_a_token_may_become_another_one() -> None:
    """The draft's first token is the session's own; where it changes, another session begins."""
    drafter = pair("byte-level", "other byte-level")
    tokens = [byte_level().vocabulary[letter] for letter in "def"]
    proposer = drafter.begin(tuple(tokens[:1]), standard(tokens[:1]))
    draft = Draft()
    for end in (1, 2, 3):
        draft = proposer.draft(tokens[1:end], 3, independent())
    assert wide_byte_level().encode("def") == tuple(proposer._reading.ids)
    assert KINDS["byte-level"]().decode(draft.tokens).startswith(" mean")
    assert drafter.model.open_sessions == 1  # type: ignore[attr-defined]


def test_an_end_token_is_drafted_where_both_have_it() -> None:
    class Ending(FakeModel):
        def logits_after(self, context: Sequence[int], memory: tuple[int, ...] = ()) -> np.ndarray:
            row = np.zeros(self.vocab_size, dtype=np.float32)
            row[end if len(context) > 4 else theirs.vocabulary["e"]] = 30
            return row

    ours, theirs = byte_level(), wide_byte_level()
    end = theirs.vocabulary["<|im_end|>"]
    model = Ending(len(theirs.vocabulary) + 9, name="reciter", eos=[end])
    prompt = ours.encode("the", special=False)
    for sampling in (GREEDY, SAMPLED):
        drafter = pair("byte-level", "other byte-level", model)
        draft = drafter.begin(prompt, standard(prompt, sampling)).draft((), 8, independent())
        assert draft.tokens[-1] == ours.vocabulary["<|im_end|>"]
        assert ours.vocabulary["<|im_end|>"] not in draft.tokens[:-1]
        assert len(draft) < 8


def test_ids_beyond_the_targets_head_are_not_drafted() -> None:
    target = byte_level()
    head = 300
    drafter = CrossVocab(Reciter(wide_byte_level()), wide_byte_level(), target, head)
    tokens = target.encode(SAID, special=False)
    beyond = next(at for at, token in enumerate(tokens) if at > 4 and token >= head)
    prompt = tokens[: beyond - 1]
    draft = drafter.begin(prompt, standard(prompt)).draft((), 6, independent())
    assert all(token < head for token in draft.tokens)


# ------------------------------------------------------------------------ refusals and ends


def test_what_cannot_be_read_is_refused_by_name() -> None:
    drafter = pair("byte-level", "other byte-level")
    with pytest.raises(UnsupportedModel, match=r"reciter .* sound"):
        drafter.begin(np.zeros((4, 10), dtype=np.float32), standard(()))
    encoder = FakeModel(4000, name="reciter", encoder=True)
    with pytest.raises(UnsupportedModel, match=r"reciter is an encoder-decoder"):
        pair("byte-level", "other byte-level", encoder).begin((80, 81, 82), standard(()))
    small = FakeModel(4000, name="reciter", context_length=2)
    prompt = byte_level().encode(SAID[:60], special=False)
    with pytest.raises(PromptTooLong):
        pair("byte-level", "other byte-level", small).begin(prompt, standard(prompt))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_drafts_end_with_the_context_and_with_bad_logits(sampling: Sampling) -> None:
    ours, theirs = byte_level(), wide_byte_level()
    prompt = ours.encode("the small river", special=False)
    length = len(theirs.encode("the small river", special=False))
    model = FakeModel(4000, name="reciter", seed=2, context_length=length + 2)
    drafter = pair("byte-level", "other byte-level", model)
    proposer = drafter.begin(prompt, standard(prompt, sampling))
    assert len(proposer.draft((), 9, independent())) <= 9
    assert model.sessions[-1].length <= length + 2
    assert not proposer.draft(ours.encode(" was under it", special=False), 9, independent()).tokens
    broken = FakeModel(4000, name="reciter", fail_at=length - 1)
    proposer = pair("byte-level", "other byte-level", broken).begin(
        prompt, standard(prompt, sampling)
    )
    with pytest.raises(BadLogits, match=f"reciter .* position {length - 1}"):
        proposer.draft((), 2, independent())


def test_nothing_is_drafted_behind_a_prompt_without_text() -> None:
    ours = byte_level()
    pad = ours.vocabulary["<|pad|>"]
    proposer = pair("byte-level", "other byte-level").begin((pad,), standard((pad,)))
    assert len(proposer.draft((), 3, independent())) == 0
    output = ours.encode("def", special=False)
    assert len(proposer.draft(output, 3, independent())) > 0


def test_bans_that_leave_the_common_tokens_nothing_end_the_draft() -> None:
    drafter = pair("byte-level", "other byte-level")
    prompt = byte_level().encode("the", special=False)
    banned = tuple((int(token),) for token in drafter.common)
    proposer = drafter.begin(prompt, standard(prompt, Sampling(temperature=1.0, banned=banned)))
    assert len(proposer.draft((), 3, independent())) == 0
