"""Models that the CPU engine runs, behind the ports `Model` and `Session` and all optional ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, cast

import numpy as np

from draftproof.backends.checks import require_pass, require_token_prompt
from draftproof.backends.cpu import processors
from draftproof.backends.cpu.native import require_native
from draftproof.backends.cpu.remembered import Remembered
from draftproof.core import Int64, Logits, Prompt
from draftproof.errors import OutOfMemory
from draftproof.ports import Pass, Threads

TRIAL_BYTES = 2**27  # of weights: several times what caches hold, and a few milliseconds


class CpuModel:
    """A decoder of the Llama family; the logits of a position are the same bits in any pass.

    Args:
        engine: A finished `draftproof._native.Model`.
        name: What messages call it.
        architecture: Its GGUF name.
        context_length: Most tokens in a session.
        eos: Token ids that end a sequence.
        coarse: Whether its weights were cut to fewer bits than the file's.
    """

    banned: tuple[tuple[int, ...], ...] = ()
    banned_first: frozenset[int] = frozenset()

    def __init__(
        self,
        engine: Any,
        *,
        name: str,
        architecture: str,
        vocab_size: int,
        context_length: int,
        eos: frozenset[int],
        coarse: bool = False,
    ) -> None:
        self.engine = engine
        self.name = name
        self.architecture = architecture
        self.vocab_size = vocab_size
        self.context_length: int | None = context_length
        self.eos = eos
        self.coarse = coarse
        self._columns: Any = None  # of the logits; all of them
        self.remembered = Remembered()

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take; 0 for the first layers of another model, which has them."""
        return int(self.engine.weight_bytes)

    @property
    def cache_bytes_per_token(self) -> int:
        """Memory that a session takes per token; it grows by pages of tokens."""
        return int(self.engine.page_bytes) // int(require_native().PAGE)

    def info(self) -> dict[str, object]:
        """What runs the model, for reports."""
        return {
            "backend": "cpu",
            "device": "cpu",
            "kernels": self.engine.kernels,
            "threads": self.threads.count,
            "pinned": self.threads.pinned,
            "weights": "cut to 4 bits" if self.coarse else "as in the file",
        }

    def open(self, prompt: Prompt) -> CpuSession:
        """A new session over `prompt`, which is not scored yet.

        Raises:
            EmptyPrompt: It has no tokens.
            PromptTooLong: It leaves no room in the context.
            InvalidInput: It is not token ids.
        """
        return CpuSession(self, require_token_prompt(self.name, prompt, self.context_length))

    @property
    def remembers(self) -> bool:
        """Whether caches of closed sessions are kept."""
        return self.remembered.most > 0

    def remember(self, sessions: int) -> None:
        """Keep the caches of the latest so many closed sessions: none at first.

        They count towards the limit of key and value memory, and are freed where it is reached.
        """
        self.remembered.remember(sessions)

    def resume(self, prompt: Prompt) -> CpuSession:
        """A session over `prompt` that has cached what a remembered one shares with its beginning.

        All but its last token may be. Raises what `open` does.
        """
        session = self.open(prompt)
        session.take_over()
        return session

    def narrow(self, ids: Sequence[int]) -> tuple[CpuModel, Int64[np.ndarray, "rows"]]:
        """The same engine, of whose head only what `ids` need is multiplied.

        A head is computed 16 rows at a time, so that whole sixteens come back. They have the bits
        that the full head gives.

        Args:
            ids: The token ids whose logits are wanted, in any order.

        Returns:
            A model whose logits have a column for each of the ids beside it, rising, in passes of
            its own sessions and of this model's. Its `vocab_size` is still that of all tokens,
            since it reads every one of them.

        Raises:
            ValueError: There are no ids, or one is outside the vocabulary.
        """
        native = require_native()
        panels = np.unique(np.asarray(ids, np.int64) // native.PANEL)
        narrowed = copy(self)
        narrowed._columns = native.Columns(panels.astype(np.int32), self.vocab_size)
        among = (panels[:, None] * native.PANEL + np.arange(native.PANEL)).reshape(-1)
        return narrowed, among[among < self.vocab_size]

    @property
    def layers(self) -> int:
        """How many it has."""
        return int(self.engine.layers)

    def shallow(self, layers: int) -> CpuModel:
        """The first `layers` layers under the same norm and head, in the same memory.

        Its sessions are its own; their keys and values count towards the same limit.

        Raises:
            ValueError: There are fewer layers, or none are wanted.
        """
        shallowed = copy(self)
        shallowed.engine = self.engine.shallow(layers)
        shallowed.name = f"{self.name} (first {layers} layers)"
        return shallowed

    @property
    def threads(self) -> Threads:
        """What computes it; those of a model of fewer layers are its own."""
        return Threads(int(self.engine.threads), bool(self.engine.processors))

    def use_threads(self, threads: Threads) -> None:
        """Be computed by these threads from the next pass on.

        Pinned ones stay on a processor each; the calling thread does so while a pass lasts. Where
        this process has no processors for them, the system places them.

        Raises:
            ValueError: There are fewer than 1, or more than 1024.
        """
        self.engine.use_threads(threads.count, processors.places(threads))

    def choices(self) -> tuple[Threads, ...]:
        """A thread for each core, for each logical processor, and both of them pinned."""
        return processors.choices()

    def trial(self, threads: Threads) -> CpuModel:
        """The first layers and a sliver of the head, to time threads that are its own.

        Of a large model some `TRIAL_BYTES`: its passes are alike, and it has many.
        """
        whole = max(1, int(self.engine.pass_bytes))
        layers = min(self.layers, max(1, -(-self.layers * TRIAL_BYTES // whole)))
        part, _ = self.shallow(layers).narrow(range(1))
        part.use_threads(threads)
        return part

    def score_together(self, passes: Sequence[Pass]) -> list[Logits]:
        """Append and score every session's tokens in one pass, chains and trees.

        Returns:
            The logits of each, in order. An error leaves all sessions as they were.

        Raises:
            InvalidInput: A token id has no row in the embedding.
            PromptTooLong: The tokens do not fit in the context.
            OutOfMemory: Key and value memory has reached its limit.
            ValueError: A pass cannot be made: a parent is no earlier node, for example.
        """
        sessions = [cast("CpuSession", part.session) for part in passes]
        depths = [
            session.check(part.tokens, part.keep, part.parents)
            for session, part in zip(sessions, passes, strict=True)
        ]
        counts = [len(part.tokens) for part in passes]
        total = sum(counts)
        owners = np.repeat(np.arange(len(passes), dtype=np.int32), counts)
        tokens = np.concatenate([np.array(part.tokens, np.int32) for part in passes])
        parents = np.concatenate([_parents(part) for part in passes])
        trees = np.array([bool(part.parents) for part in passes])
        keep = np.zeros(total, bool)
        for end, part in zip(np.cumsum(counts), passes, strict=True):
            keep[end - part.keep : end] = True
        sequences = [session.sequence for session in sessions]
        with self._allocating(total):
            made = sequences, owners, tokens, parents, keep, trees, self._columns
            try:
                logits = self.engine.score(*made)
            except MemoryError:
                if not self.remembered.clear():
                    raise
                logits = self.engine.score(*made)
        for session, part, depth in zip(sessions, passes, depths, strict=True):
            session.appended(part.tokens, depth)
        return np.split(logits, np.cumsum([part.keep for part in passes])[:-1])

    @contextmanager
    def _allocating(self, tokens: int) -> Iterator[None]:
        try:
            yield
        except MemoryError as error:  # the engine's own CacheFull among them
            raise OutOfMemory(
                f"no memory left for a pass of {self.name} over {tokens} tokens",
                why=str(error) or "the system has none left",
                remedy="raise the limit of key and value memory (--cache-memory), use a shorter "
                "prompt or fewer requests at a time",
            ) from error


def _parents(part: Pass) -> np.ndarray:
    return np.array(part.parents or range(-1, len(part.tokens) - 1), np.int32)


class CpuSession:
    """A `Session` that is `Branching`: keys and values in pages, rewound in constant time.

    Args:
        model: Whose session it is.
        prefix: The prompt.
    """

    def __init__(self, model: CpuModel, prefix: tuple[int, ...]) -> None:
        self._model = model
        self._prefix = prefix
        self._sequence: Any = model.engine.open()
        self._tokens: list[int] = []  # what is cached
        self._nodes: list[int] = []  # the open tree's tokens
        self._depths: list[int] = []  # of these, 1 for those behind the chain

    @property
    def prefix(self) -> tuple[int, ...]:
        """The prompt's tokens."""
        return self._prefix

    @property
    def length(self) -> int:
        """Tokens in the cache, those of an open tree not counted."""
        return 0 if self._sequence is None else int(self._sequence.length)

    @property
    def sequence(self) -> Any:
        """The engine's own part of it.

        Raises:
            ValueError: The session is closed.
        """
        if self._sequence is None:
            raise ValueError("the session is closed")
        return self._sequence

    def score(self, tokens: Sequence[int], keep: int) -> Logits:
        """Append `tokens` and score them in one pass; a pass that fails leaves the cache as it was.

        Args:
            tokens: What follows the cached tokens, at least one. No tree may be open.
            keep: How many of the last positions to return logits for.

        Returns:
            The logits after the last `keep` tokens, float32.

        Raises:
            InvalidInput: A token id has no row in the embedding.
            PromptTooLong: The tokens do not fit in the context.
            OutOfMemory: Key and value memory has reached its limit.
            ValueError: The pass cannot be made.
        """
        return self._model.score_together([Pass(self, tuple(tokens), keep)])[0]

    def score_tree(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """Open a tree behind the cached tokens, or add to the open one; raises what `score` does.

        Args:
            tokens: The nodes, at least one.
            parents: For each the node that it follows, counted over all that were scored since the
                tree was opened; -1 for the cached tokens' end.

        Returns:
            The logits after each of these nodes, float32: the bits of a chain over its path.
        """
        if not parents:
            raise ValueError("a tree has at least one node, and every node has a parent")
        return self._model.score_together([Pass(self, tuple(tokens), len(tokens), tuple(parents))])[
            0
        ]

    def keep(self, path: Sequence[int]) -> None:
        """Append the open tree's nodes on `path`, from the root on, and forget the others.

        Raises:
            ValueError: A node does not follow the one before it; the tree then stays open.
        """
        self.sequence.keep(list(path))
        self._tokens += [self._nodes[node] for node in path]
        self._nodes, self._depths = [], []

    def check(self, tokens: Sequence[int], keep: int, parents: Sequence[int] = ()) -> list[int]:
        """Refuse a pass that cannot be made; see `score`.

        Returns:
            The depths of the open tree's nodes after it; none for a chain.
        """
        depths = self._grown(parents) if parents else []
        if parents and len(parents) != len(tokens):
            raise ValueError(f"{len(tokens)} nodes but {len(parents)} parents")
        require_pass(
            self._model.name,
            tokens,
            keep,
            length=int(self.sequence.length),
            rows=self._model.vocab_size,
            context_length=self._model.context_length,
            depth=max(depths, default=None),
        )
        return depths

    def appended(self, tokens: Sequence[int], depths: list[int]) -> None:
        """Take note of a pass's tokens and of what `check` returned, once it has been made."""
        (self._nodes if depths else self._tokens).extend(tokens)
        self._depths = depths

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens, and an open tree, in constant time."""
        self.sequence.rewind(length)
        del self._tokens[length:]
        self._nodes, self._depths = [], []

    def take_over(self) -> None:
        """Begin with what a remembered session shares with the prompt's beginning; see `resume`."""
        *text, _ = self._prefix
        found = self._model.remembered.take(self._model.engine, text)
        if found is not None:
            length, self._sequence = found
            self._sequence.rewind(length)
            self._tokens = text[:length]

    def close(self) -> None:
        """Free the cache, or leave it to the model to remember."""
        if self._sequence is not None and self._model.remembers:
            self.rewind(min(len(self._tokens), self.length))  # it may have been interrupted
            self._model.remembered.put(self._model.engine, self._tokens, self._sequence)
        self._sequence = None

    def _grown(self, parents: Sequence[int]) -> list[int]:
        """The depths of the open tree's nodes with further ones."""
        depths = list(self._depths)
        for parent in parents:
            if not -1 <= parent < len(depths):
                raise ValueError(f"node {len(depths)} cannot follow node {parent}")
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths
