"""Models, sessions, tokenizers and clocks without weights: the ports, driven by tables.

A `FakeModel`'s logits are a pure function of the tokens before the position. A `FakeSession` keeps
the tokens that it was really given and computes from those alone, so that a cache that was not
rewound, or rewound too far, shows as wrong logits, as it would in a real model. It also checks
whoever uses it: a breach of the session's contract raises `BrokenContract`.

    target = FakeModel(8, seed=1)
    draft = FakeModel(8, near=target, distance=0.3, seed=2)
    session = target.open((1, 2, 3))
    logits = session.score((1, 2, 3), keep=1)
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from draftproof.core import Prompt
from draftproof.errors import EmptyPrompt, PromptTooLong, UnsupportedModel
from draftproof.ports import Guide, Pass

LawTable = Callable[[tuple[int, ...]], Sequence[float] | np.ndarray]


def take(guide: Guide, confidence: float, limit: int = 16) -> int:
    """How many tokens a draft model that is always so sure drafts, where `guide` decides."""
    count = 0
    while count < min(limit, guide.nodes) and guide.value("model") > 0:
        guide.take("model", confidence)
        count += 1
    return count


class BrokenContract(AssertionError):
    """Whoever used a fake asked for what the ports do not allow."""


class FakeClock:
    """Time that passes only when told to. Called, it is a `time.perf_counter`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class FakeModel:
    """A model whose next-token logits are looked up.

    Args:
        vocab: Tokens that the model knows.
        seed: Picks the table of random logits, a function of the last `order` tokens.
        order: How many of the last tokens matter.
        sharpness: Standard deviation of the random logits.
        near: Another model: the logits are `(1 - distance) * near + distance * own`.
        distance: See `near`; 0 is the same law and 1 an unrelated one.
        laws: Instead of the random table: the probabilities after a context (all its tokens).
            A probability of 0 becomes a logit of -1e4, since models return finite logits.
        padding: Rows of the output head beyond `vocab`, each with `padding_logit`.
        padding_logit: See `padding`.
        context_length: Most tokens in a session.
        encoder: Encoder-decoder: the decoder starts from `start` alone and the prompt, tokens or
            features, shapes every law.
        start: The decoder's first token, see `encoder`.
        fail_at: Index of a token in the sequence whose row comes back as `fail_with`.
        fail_with: NaN or an infinity.
        clock: Advanced by `seconds(n)` on each pass over n tokens.
        seconds: See `clock`.
    """

    def __init__(
        self,
        vocab: int = 8,
        *,
        name: str = "fake",
        seed: int = 0,
        order: int = 2,
        sharpness: float = 1.5,
        near: FakeModel | None = None,
        distance: float = 0.0,
        laws: LawTable | None = None,
        padding: int = 0,
        padding_logit: float = 0.0,
        context_length: int | None = None,
        eos: Sequence[int] = (),
        banned: tuple[tuple[int, ...], ...] = (),
        banned_first: Sequence[int] = (),
        encoder: bool = False,
        start: int = 0,
        fail_at: int | None = None,
        fail_with: float = float("nan"),
        clock: FakeClock | None = None,
        seconds: Callable[[int], float] = lambda n: 0.0,
    ) -> None:
        self.name = name
        self.vocab = vocab
        self.vocab_size = vocab + padding
        self.context_length = context_length
        self.eos = frozenset(eos)
        self.banned = banned
        self.banned_first = frozenset(banned_first)
        self.weight_bytes = 4 * self.vocab_size
        self.cache_bytes_per_token = 4
        self.encoder = encoder
        self.start = start
        self.fail_at = fail_at
        self.fail_with = fail_with
        self.sessions: list[FakeSession] = []
        self.encodes = 0
        self._seed, self._order, self._sharpness = seed, order, sharpness
        self._near, self._distance = near, distance
        self._laws = laws
        self._padding_logit = padding_logit
        self._clock, self._seconds = clock, seconds
        self._rows: dict[tuple[int, ...], np.ndarray] = {}

    def open(self, prompt: Prompt) -> FakeSession:
        if self.encoder:
            self.encodes += 1
            memory, prefix = _memory(prompt), (self.start,)
        elif isinstance(prompt, tuple):
            memory, prefix = (), prompt
        else:
            raise BrokenContract("a decoder-only model got features as its prompt")
        if not prefix or (self.encoder and not memory):
            raise EmptyPrompt("empty prompt", why="nothing to continue", remedy="pass tokens")
        if self.context_length is not None and len(prefix) > self.context_length:
            raise PromptTooLong(
                f"{len(prefix)} tokens, context {self.context_length}",
                why="they do not fit",
                remedy="shorten the prompt",
            )
        session = FakeSession(self, prefix, memory)
        self.sessions.append(session)
        return session

    def logits_after(self, context: Sequence[int], memory: tuple[int, ...] = ()) -> np.ndarray:
        """float32[vocab_size]: the logits after all of `context`, failures left out."""
        row = np.full(self.vocab_size, self._padding_logit, dtype=np.float32)
        row[: self.vocab] = self._known(tuple(context), memory)
        return row

    def plain(self, prompt: Prompt, count: int) -> list[int]:
        """The greedy continuation by `count` tokens: the obvious loop, no cache."""
        memory = _memory(prompt) if self.encoder else ()
        context = [self.start] if self.encoder else [int(t) for t in prompt]
        prefix = len(context)
        for _ in range(count):
            context.append(int(np.argmax(self.logits_after(context, memory))))
        return context[prefix:]

    @property
    def open_sessions(self) -> int:
        return sum(not session.closed for session in self.sessions)

    def spend(self, tokens: int) -> None:
        if self._clock is not None:
            self._clock.advance(self._seconds(tokens))

    def _known(self, context: tuple[int, ...], memory: tuple[int, ...]) -> np.ndarray:
        if self._laws is not None:
            probs = np.asarray(self._laws((*memory, *context)), dtype=np.float64)
            with np.errstate(divide="ignore"):
                return np.maximum(np.log(probs), -1e4).astype(np.float32)
        own = self._random((*memory, *context[-self._order :]))
        if self._near is None:
            return own
        other = self._near.logits_after(context, memory)[: self.vocab]
        if len(other) < self.vocab:
            other = np.concatenate([other, own[len(other) :]])
        mixed = (1 - self._distance) * other + self._distance * own
        return mixed.astype(np.float32)

    def _random(self, key: tuple[int, ...]) -> np.ndarray:
        row = self._rows.get(key)
        if row is None:
            rng = np.random.default_rng([self._seed, len(key), *key])
            row = (self._sharpness * rng.standard_normal(self.vocab)).astype(np.float32)
            self._rows[key] = row
        return row


class BatchingFakeModel(FakeModel):
    """A `FakeModel` that scores many sessions in one pass; `batches` are the tokens of each."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.batches: list[tuple[int, ...]] = []

    def score_together(self, passes: Sequence[Pass]) -> list[np.ndarray]:
        sessions = [part.session for part in passes]
        if len({id(session) for session in sessions}) < len(sessions):
            raise BrokenContract("a session takes part twice")
        if any(session.model is not self for session in sessions):
            raise BrokenContract("a session of another model takes part")
        sizes = tuple(len(part.tokens) for part in passes)
        self.batches.append(sizes)
        self.spend(sum(sizes))
        return [part.session.take(part.tokens, part.keep) for part in passes]


def _memory(prompt: Prompt) -> tuple[int, ...]:
    """What an encoder remembers of a prompt: its tokens, or a fingerprint of its features."""
    if isinstance(prompt, tuple):
        return prompt
    return (zlib.crc32(np.ascontiguousarray(prompt).tobytes()),)


class FakeSession:
    """One sequence in a `FakeModel`. `tokens` are the cached tokens."""

    def __init__(self, model: FakeModel, prefix: tuple[int, ...], memory: tuple[int, ...]) -> None:
        self.model = model
        self.prefix = prefix
        self.memory = memory
        self.tokens: list[int] = []
        self.closed = False
        self.passes = 0
        self.rows = 0
        self.rewinds = 0

    @property
    def length(self) -> int:
        self._check(not self.closed, "length of a closed session")
        return len(self.tokens)

    def score(self, tokens: Sequence[int], keep: int) -> np.ndarray:
        self.model.spend(len(tokens))
        return self.take(tokens, keep)

    def take(self, tokens: Sequence[int], keep: int) -> np.ndarray:
        """A pass, but for its time."""
        self._check(not self.closed, "score on a closed session")
        self._check(len(tokens) > 0, "score of no tokens")
        self._check(0 <= keep <= len(tokens), f"keep {keep} of {len(tokens)} tokens")
        for token in tokens:
            self._check(0 <= token < self.model.vocab_size, f"token {token} has no embedding")
        self.tokens.extend(int(token) for token in tokens)
        limit = self.model.context_length
        self._check(limit is None or len(self.tokens) <= limit, "the context overflowed")
        head = self.tokens[: len(self.prefix)]
        self._check(tuple(head) == self.prefix[: len(head)], f"the cache begins with {head}")
        self.passes += 1
        self.rows += len(tokens)
        rows = np.empty((keep, self.model.vocab_size), dtype=np.float32)
        for i in range(keep):
            end = len(self.tokens) - keep + i + 1
            if end - 1 == self.model.fail_at:
                rows[i] = self.model.fail_with
            else:
                rows[i] = self.model.logits_after(self.tokens[:end], self.memory)
        return rows

    def rewind(self, length: int) -> None:
        self._check(not self.closed, "rewind of a closed session")
        self._check(0 <= length <= len(self.tokens), f"rewind to {length} of {len(self.tokens)}")
        del self.tokens[length:]
        self.rewinds += 1

    def close(self) -> None:
        self.closed = True

    def _check(self, holds: bool, breach: str) -> None:
        if not holds:
            raise BrokenContract(f"{self.model.name}: {breach}")


class FakeTokenizer:
    """A tokenizer whose tokens are byte strings, matched longest first.

    A piece may be part of a character: "é", "€" and the emoji below are split over tokens, as byte
    level vocabularies do. Special tokens come first, in the order `<bos>`, `<eos>`, `<user>`,
    `<assistant>`.

    Args:
        pieces: The byte strings; by default `PIECES`.
        bos: Whether prompts begin with `<bos>`.
        template: Whether there is a chat template.
    """

    SPECIAL = ("<bos>", "<eos>", "<user>", "<assistant>")
    PIECES = (
        *(bytes([c]) for c in b"abcdefghijklmnopqrstuvwxyz .,!?\n0123456789"),
        *(b" the", b" cat", b" sat", b" on", b"hello", b" world", b"ing"),
        *(b"\xc3", b"\xa9", b"\xe2", b"\x82", b"\xac", b"\xf0\x9f", b"\x98", b"\x80"),
    )

    def __init__(
        self, pieces: Sequence[bytes] = PIECES, *, bos: bool = False, template: bool = True
    ) -> None:
        self._pieces = tuple(pieces)
        self._ids = {piece: len(self.SPECIAL) + i for i, piece in enumerate(self._pieces)}
        self._longest = max(len(piece) for piece in self._pieces)
        self._bos = bos
        self._template = template

    @classmethod
    def words(cls, *words: str) -> FakeTokenizer:
        """One token per given word, matched in running text."""
        return cls([word.encode() for word in words])

    @classmethod
    def of_bytes(cls) -> FakeTokenizer:
        """All 256 bytes, so that any text can be encoded."""
        return cls([bytes([byte]) for byte in range(256)])

    @property
    def vocab_size(self) -> int:
        return len(self.SPECIAL) + len(self._pieces)

    @property
    def bos(self) -> int:
        return 0

    @property
    def eos(self) -> int:
        return 1

    @property
    def vocabulary(self) -> Mapping[str, int]:
        special = {string: i for i, string in enumerate(self.SPECIAL)}
        return special | {piece.decode("latin-1"): i for piece, i in self._ids.items()}

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        ids = [self.bos] if self._bos and special else []
        data = text.encode()
        while data:
            for size in range(min(self._longest, len(data)), 0, -1):
                if data[:size] in self._ids:
                    ids.append(self._ids[data[:size]])
                    data = data[size:]
                    break
            else:
                raise ValueError(f"the fake tokenizer has no piece for {data[:4]!r}")
        return tuple(ids)

    def decode(self, ids: Sequence[int]) -> str:
        first = len(self.SPECIAL)
        known = (self._pieces[i - first] for i in ids if first <= i < self.vocab_size)
        return b"".join(known).decode("utf-8", errors="replace")

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        if not self._template:
            raise UnsupportedModel(
                "no chat template", why="messages cannot be laid out", remedy="pass text"
            )
        ids: list[int] = []
        for message in messages:
            role = self.SPECIAL.index("<assistant>" if message["role"] == "assistant" else "<user>")
            ids += [role, *self.encode(message["content"]), self.eos]
        return (*ids, self.SPECIAL.index("<assistant>"))
