"""Streamed text equals decoded text, stops are where they are, and vocabularies agree or not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from draftproof.core import Token
from draftproof.errors import InvalidSetting, TokenizerMismatch
from draftproof.text import Detokenizer, Stopper, shared_ids

SENTENCES = (
    "the quick brown fox jumps over the lazy dog, and the dog sleeps on",
    "  def f(x):\n    return x  # two   spaces\n\n",
    "推測解碼讓大型語言模型生成更快。語言模型逐字生成文字。",
    "naïve café, Привет мир, 😀😃 👩‍👩‍👧 🇨🇭 é \u0000\x7f",
) * 3
SPECIAL = ["<unk>", "<s>", "</s>"]


class Wrapped:
    """The port over a tokenizer of the `tokenizers` library; counts the ids it decodes."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self.inner = inner
        self.vocabulary: Mapping[str, int] = inner.get_vocab(with_added_tokens=True)
        self.decoded = 0

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.inner.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        return self.inner.decode(list(ids), skip_special_tokens=True)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        raise NotImplementedError


def byte_level() -> tokenizers.Tokenizer:
    """As GPT-2, Llama 3 and Qwen."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(SENTENCES, trainer)
    return inner


def metaspace(decoder: decoders.Decoder, byte_fallback: bool) -> tokenizers.Tokenizer:
    """As SentencePiece: a mark for the space, and bytes for unknown characters."""
    inner = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=250, special_tokens=SPECIAL, show_progress=False)
    inner.train_from_iterator(SENTENCES[:2] + SENTENCES[3:4], trainer)
    model = json.loads(inner.to_str())["model"]
    vocabulary = model["vocab"]
    for byte in range(256 if byte_fallback else 0):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    merges = [tuple(pair) for pair in model["merges"]]
    inner.model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=byte_fallback)
    inner.decoder = decoder
    return inner


LLAMA_2 = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)
KINDS = {
    "byte-level": byte_level,
    "sentencepiece": lambda: metaspace(decoders.Metaspace(), byte_fallback=False),
    "llama-2": lambda: metaspace(LLAMA_2, byte_fallback=True),
}


@lru_cache
def tokenizer(kind: str) -> Wrapped:
    return Wrapped(KINDS[kind]())


def pieces_of(detokenizer: Detokenizer, ids: Sequence[int]) -> list[str]:
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


# --- detokenising ---------------------------------------------------------------------------------


@st.composite
def id_sequences(draw: st.DrawFn) -> tuple[str, list[int]]:
    """Any ids, with runs of single bytes and of special tokens made likely."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    size = tokenizer(kind).inner.get_vocab_size()
    if kind == "byte-level":
        likely = st.integers(3, 258)  # the alphabet
    else:
        likely = st.integers(max(0, size - 256), size - 1)  # the bytes, where it has any
    runs = st.one_of(
        st.lists(st.integers(0, size + 2), max_size=6),  # some beyond the vocabulary
        st.lists(likely, max_size=30),
        st.lists(st.integers(0, 2), max_size=12),
        st.text(max_size=6).map(lambda text: list(tokenizer(kind).encode(text))),
        st.sampled_from(SENTENCES).map(lambda text: list(tokenizer(kind).encode(text))),
    )
    return kind, list(chain.from_iterable(draw(st.lists(runs, max_size=5))))


def fallback(text: str) -> list[int]:
    return [tokenizer("llama-2").vocabulary[f"<0x{byte:02X}>"] for byte in text.encode()]


@settings(max_examples=300, deadline=None)
@given(id_sequences())
@example(("llama-2", [*fallback("推"), 1, *fallback("推")[:2], 40]))
@example(("llama-2", [*fallback("推推"), *fallback("推")[2:], 40]))
def test_pieces_join_to_the_text_of_all_ids(case: tuple[str, list[int]]) -> None:
    kind, ids = case
    pieces = pieces_of(Detokenizer(tokenizer(kind)), ids)
    assert "".join(pieces) == tokenizer(kind).decode(ids)
    if pieces[-1]:
        assert pieces[-2] == "", "text at the end belongs to an id that gave none so far"


@settings(max_examples=200, deadline=None)
@given(id_sequences(), st.text(min_size=1, max_size=40))
def test_text_behind_a_prompt_is_what_it_adds(case: tuple[str, list[int]], prompt: str) -> None:
    """With the space that decoding the output alone would lose."""
    kind, ids = case
    before = tokenizer(kind).encode("x" + prompt + "x")
    whole = tokenizer(kind).decode([*before, *ids])
    joined = "".join(pieces_of(Detokenizer(tokenizer(kind), before), ids))
    assert tokenizer(kind).decode(before) + joined == whole


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_leading_space(kind: str) -> None:
    text = tokenizer(kind)
    before = text.encode("the quick")
    ids = text.encode("the quick brown fox")[len(before) :]
    assert "".join(pieces_of(Detokenizer(text, before), ids)) == " brown fox"
    assert "".join(pieces_of(Detokenizer(text), ids)) == text.decode(ids)


def test_a_character_split_over_tokens_comes_whole() -> None:
    text = tokenizer("byte-level")
    ids = [text.vocabulary[c] for c in bytes_as_letters("a😀é")]
    assert pieces_of(Detokenizer(text), ids) == ["a", "", "", "", "😀", "", "é", ""]
    assert pieces_of(Detokenizer(text), ids[:3]) == ["a", "", "", "\ufffd"]


def test_special_tokens_within_a_character() -> None:
    """Decoders leave them out, so the character is one; nothing of it shows before it is whole."""
    text = tokenizer("byte-level")
    first, *rest = [text.vocabulary[c] for c in bytes_as_letters("😀a")]
    pieces = pieces_of(Detokenizer(text), [first, *[2] * 12, *rest])
    assert set(pieces[:-3]) == {""}
    assert "".join(pieces[-3:]) == "😀a"


def test_a_prompt_that_ends_within_a_character() -> None:
    text = tokenizer("byte-level")
    ids = [text.vocabulary[c] for c in bytes_as_letters("a😀é")]
    assert pieces_of(Detokenizer(text, ids[:3]), ids[3:]) == ["", "😀", "", "é", ""]
    assert pieces_of(Detokenizer(text, ids[:3]), []) == [""]
    text = tokenizer("llama-2")
    before = [*text.encode("the"), *fallback("推")[:2]]
    assert pieces_of(Detokenizer(text, before), [*fallback("推")[2:], 1]) == ["", "", "推"]


def bytes_as_letters(text: str) -> list[str]:
    """The byte-level alphabet's letters for a text's bytes."""
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    return [letter for word, _ in spelled for letter in word]


@pytest.mark.parametrize(
    ("kind", "ids"),
    [
        ("byte-level", [40, 90, 150, 300, 310, 330] * 500),
        ("byte-level", [3 + 0x80] * 3000),
        ("byte-level", [50, *[2] * 2999]),
        ("llama-2", fallback("推") * 1000),
        ("llama-2", [50, *fallback("推"), *[2] * 2999]),
    ],
    ids=["any", "broken", "special", "bytes", "special within bytes"],
)
def test_each_id_costs_the_same(kind: str, ids: list[int]) -> None:
    text = Wrapped(tokenizer(kind).inner)
    joined = "".join(pieces_of(Detokenizer(text), ids))
    assert text.decoded < 40 * len(ids)
    assert joined == text.decode(ids)


# --- stop strings ---------------------------------------------------------------------------------


def tokens(count: int) -> list[Token]:
    return [
        Token(id=100 + i, position=i, round=i // 3, origin="accepted", p=0.5, logprob=-float(i))
        for i in range(count)
    ]


def by_hand(
    pieces: Sequence[str], active: Sequence[bool], stops: Sequence[str]
) -> tuple[list[str], str | None]:
    """The texts of the kept tokens and the stop, from the whole text."""
    text = "".join(pieces)
    owner = [i for i, piece in enumerate(pieces) for _ in piece]
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop) and active[owner[end - 1]]]
        if met:
            stop = max(met, key=len)
            start, kept = end - len(stop), []
            for i, piece in enumerate(pieces):
                begin = sum(map(len, pieces[:i]))
                kept.append(piece[: max(0, start - begin)])
            while kept and not kept[-1]:
                kept.pop()
            return kept, stop
    return list(pieces), None


def run(
    pieces: Sequence[str], active: Sequence[bool], stops: Sequence[str], tail: str = ""
) -> tuple[list[Token], str | None]:
    stopper = Stopper(tuple(stops))
    out: list[Token] = []
    for token, piece, counts in zip(tokens(len(pieces)), pieces, active, strict=True):
        out += stopper.push(token, piece, counts)
        if stopper.stopped is not None:
            return out, stopper.stopped
    out += stopper.finish(tail)
    return out, stopper.stopped


LETTERS = st.text(alphabet="ab", max_size=4)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=3)


@settings(max_examples=600, deadline=None)
@given(st.lists(LETTERS, max_size=12), st.data(), STOPS)
def test_stops_are_where_the_whole_text_has_them(
    pieces: list[str], data: st.DataObject, stops: list[str]
) -> None:
    begin = data.draw(st.integers(0, 4))
    active = [i >= begin for i in range(len(pieces))]
    in_flush = bool(pieces) and data.draw(st.booleans())
    tail = pieces[-1] if in_flush else ""
    given_ = [*pieces[:-1], ""] if in_flush else pieces
    kept, stop = by_hand(pieces, active, stops)
    out, stopped = run(given_, active, stops, tail)
    assert stopped == stop
    assert [token.text for token in out] == kept
    expected = tokens(len(kept))
    assert [(t.id, t.position, t.logprob) for t in out] == [
        (t.id, t.position, t.logprob) for t in expected
    ]


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab", max_size=20), st.data(), STOPS)
def test_the_text_does_not_depend_on_the_tokens(
    text: str, data: st.DataObject, stops: list[str]
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    split = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = run([text], [True], stops)
    parts = run(split, [True] * len(split), stops)
    assert parts[1] == whole[1]
    assert "".join(t.text for t in parts[0]) == "".join(t.text for t in whole[0])


@settings(max_examples=300, deadline=None)
@given(st.lists(LETTERS, max_size=12), STOPS)
def test_no_more_is_held_back_than_may_belong_to_a_stop(
    pieces: list[str], stops: list[str]
) -> None:
    stopper = Stopper(tuple(stops))
    released = 0
    for i, (token, piece) in enumerate(zip(tokens(len(pieces)), pieces, strict=True)):
        released += len(stopper.push(token, piece, False))
        text = "".join(pieces[: i + 1])
        held = max(
            (n for s in stops for n in range(len(s)) if n and text.endswith(s[:n])), default=0
        )
        due = [
            k + 1
            for k in range(i + 1)
            if pieces[k] and len("".join(pieces[: k + 1])) <= len(text) - held
        ]
        assert released == max(due, default=0)


@pytest.mark.parametrize(
    ("pieces", "stops", "kept", "stop"),
    [
        (["Hello", " wor", "ld"], ["wo"], ["Hello", " "], "wo"),  # within a token
        (["Hello", "\n", "\n", "x"], ["\n\n"], ["Hello"], "\n\n"),  # whole tokens go
        (["a", "bc", "d"], ["cd"], ["a", "b"], "cd"),  # across tokens, one cut
        (["abcd"], ["abcd", "bc"], ["a"], "bc"),  # the one complete first
        (["a", "b", "c", "d"], ["abcd", "bc"], ["a"], "bc"),  # however it is split
        (["abc"], ["ab", "abc"], [], "ab"),  # one begins the other
        (["xbc"], ["c", "bc"], ["x"], "bc"),  # ending together: the longest
        (["aa", "ab"], ["aab"], ["a"], "aab"),  # after a false start
        (["ab", "", "", "cd"], ["cd"], ["ab"], "cd"),  # no text before the stop: its first bytes
        (["ab", "", "c", "d"], ["d"], ["ab", "", "c"], "d"),  # no text, but text after it
        (["", "stop"], ["stop"], [], "stop"),  # nothing is left
        (["a", "b"], ["c"], ["a", "b"], None),
        (["a", "b", ""], ["bc"], ["a", "b", ""], None),  # held to the end, then released
    ],
)
def test_stop_golden(
    pieces: list[str], stops: list[str], kept: list[str], stop: str | None
) -> None:
    out, stopped = run(pieces, [True] * len(pieces), stops)
    assert ([token.text for token in out], stopped) == (kept, stop)
    assert [token.id for token in out] == [100 + i for i in range(len(kept))]


def test_a_stop_before_min_tokens_does_not_count_but_one_that_ends_after_does() -> None:
    assert run(["ab", "ab", "x"], [False, False, True], ["ab"])[1] is None
    out, stop = run(["ab", "a", "b"], [False, False, True], ["ab"])
    assert ([token.text for token in out], stop) == (["ab"], "ab")


def test_a_stop_within_the_flush() -> None:
    out, stop = run(["a", ""], [True, True], ["\ufffd"], tail="\ufffd")
    assert ([token.text for token in out], stop) == (["a"], "\ufffd")


def test_without_stops_text_is_released_at_once() -> None:
    stopper = Stopper()
    first, second, third = tokens(3)
    assert [t.text for t in stopper.push(first, "a")] == ["a"]
    assert stopper.push(second, "") == []
    assert [t.text for t in stopper.push(third, "😀")] == ["", "😀"]
    assert stopper.finish() == []


def test_stop_strings_over_split_characters() -> None:
    """Case 17: the stop is an emoji whose bytes are tokens of their own."""
    text = tokenizer("byte-level")
    ids = [text.vocabulary[c] for c in bytes_as_letters("é😀a")]
    detokenizer, stopper = Detokenizer(text), Stopper(("😀",))
    out: list[Token] = []
    for token, i in zip(tokens(len(ids)), ids, strict=True):
        out += stopper.push(token, detokenizer.push(i))
        if stopper.stopped:
            break
    assert [token.text for token in out] == ["", "é"]
    assert stopper.stopped == "😀"


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="a stop string is empty"):
        Stopper(("a", ""))


# --- vocabularies ---------------------------------------------------------------------------------


class Words:
    """A tokenizer of which only the vocabulary matters."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self.vocabulary = vocabulary

    def encode(self, text: str) -> tuple[int, ...]:
        raise NotImplementedError

    def decode(self, ids: Sequence[int]) -> str:
        raise NotImplementedError

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        raise NotImplementedError


def words(count: int, **changes: int) -> Words:
    return Words({f"w{i}": i for i in range(count)} | changes)


def test_equal_vocabularies_share_every_id() -> None:
    assert shared_ids(words(490), words(490)) == 490
    same = words(490)
    assert shared_ids(same, same) == 490


def test_added_tokens_of_one_are_not_drafted() -> None:
    """As Qwen2.5 and Qwen2.5-Coder, whose added tokens differ."""
    assert shared_ids(words(500), words(490)) == 490
    assert shared_ids(words(490), words(500)) == 490
    shared = shared_ids(words(490, added=495), words(490, other=499))
    assert shared == 490
    assert shared_ids(words(490, added=495), words(490, added=495)) == frozenset([*range(490), 495])


def test_an_id_with_two_strings_agrees_by_either() -> None:
    target, draft = {"a": 0, "b": 1, "B": 1}, {"a": 0, "B": 1, "b": 1}
    assert shared_ids(Words(target), Words(draft)) == 2
    assert shared_ids(Words(target), Words({"a": 0, "b": 1})) == 2
    assert shared_ids(Words({"a": 0, "b": 1}), Words(target)) == 2


def test_permuted_strings_are_refused() -> None:
    """Case 8: the same size, the same strings, other ids."""
    permuted = Words({f"w{i}": (i + 1) % 490 for i in range(490)})
    with pytest.raises(TokenizerMismatch) as caught:
        shared_ids(words(490), permuted)
    assert "490 of 490 token ids" in caught.value.what
    assert "0 is 'w0' to the target and 'w489' to the draft" in caught.value.what
    assert caught.value.what.count(" to the draft") == 3
    assert "--drafter lookup" in caught.value.remedy


def test_one_different_string_is_refused() -> None:
    draft = {f"w{i}": i for i in range(489)} | {"<pad>": 489}
    with pytest.raises(TokenizerMismatch, match=r"1 of 490 token ids .*489 is 'w489'"):
        shared_ids(words(490), Words(draft))


@pytest.mark.parametrize("draft", [Words({}), Words({f"x{i}": 1000 + i for i in range(490)})])
def test_too_little_in_common_is_refused(draft: Words) -> None:
    with pytest.raises(TokenizerMismatch, match="share 0 token ids"):
        shared_ids(words(490), draft)


def test_ninety_percent_of_the_smaller_vocabulary_is_enough() -> None:
    shifted = Words({f"w{i}": i for i in range(90)} | {f"x{i}": 1000 + i for i in range(10)})
    assert shared_ids(words(500), shifted) == 90
    fewer = Words({f"w{i}": i for i in range(89)} | {f"x{i}": 1000 + i for i in range(11)})
    with pytest.raises(TokenizerMismatch, match="share 89 token ids"):
        shared_ids(words(500), fewer)
