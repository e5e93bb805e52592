"""The face of the engine: a target, a drafter and a tokenizer, ready to generate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, get_args, overload

import numpy as np

from draftproof.core import Limits, Prompt, Rule, Token
from draftproof.engine.decode import Generation, decode
from draftproof.engine.request import Request, RuleChoice, Running, check_ends
from draftproof.engine.round import read
from draftproof.errors import InvalidSetting, UnsupportedModel
from draftproof.ports import Drafter, Lengths, Model, Remembering, Tokenizer
from draftproof.rng import Noise
from draftproof.sampling import Sampling, Shaping

RULES = (*get_args(Rule), "auto")
UserPrompt: TypeAlias = "str | Sequence[int] | np.ndarray"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Shaping):
    """What a call to `generate`, `stream` or `chat` may set.

    Args:
        banned: Words (strings) or token sequences that must not appear. The settings that shape
            the law, from `temperature` to `logit_bias`, are those of `sampling.Shaping`.
        max_tokens: Most tokens to emit.
        min_tokens: No end before this many tokens.
        stop: A string, or several, before which the text ends.
        eos: Token ids that end the output; None takes the model's own.
        seed: Makes the output reproducible.
        verify: The rule: auto, token, block or coupled.
        logprobs: Report log-probabilities, with this many most probable tokens; None is off.

    Raises:
        InvalidSetting: A value is out of range, whatever the model.
    """

    banned: Sequence[str | Sequence[int]] = ()
    max_tokens: int = 256
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    eos: Sequence[int] | None = None
    seed: int | None = None
    verify: RuleChoice = "auto"
    logprobs: int | None = None

    def __post_init__(self) -> None:
        self.sampling(tuple(tuple(word) for word in self.banned if not isinstance(word, str)))
        check_ends(self.limits(frozenset()), self.logprobs)
        if self.seed is not None:
            Noise(self.seed)
        if self.verify not in RULES:
            raise InvalidSetting(
                f"no rule is called {self.verify!r}",
                why="the rule decides which drafted tokens stay",
                remedy=f"set verify to one of {', '.join(RULES)}",
            )

    def sampling(self, banned: tuple[tuple[int, ...], ...]) -> Sampling:
        """The sampling settings, with the banned token sequences of a model and its tokenizer."""
        shaping = {f.name: getattr(self, f.name) for f in fields(Shaping)}
        return Sampling(**{**shaping, "logit_bias": dict(self.logit_bias)}, banned=banned)

    def limits(self, model_eos: frozenset[int]) -> Limits:
        """Where the output ends; `model_eos` counts unless `eos` was given."""
        eos = model_eos if self.eos is None else frozenset(self.eos)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        return Limits(self.max_tokens, self.min_tokens, eos, stop)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """The options by name.

        Raises:
            InvalidSetting: A name is unknown, or a value out of range.
        """
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise InvalidSetting(
                f"unknown option: {', '.join(unknown)}",
                why="a setting that nothing reads would change nothing in silence",
                remedy=f"the options are {', '.join(known)}",
            )
        return cls(**given)


class Stream:
    """The tokens of one request as they come; `str(token)` is a token's text."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._tokens = (token for _, token in decode([running]))

    def __iter__(self) -> Iterator[Token]:
        return self._tokens

    def close(self) -> None:
        """Stop early and free the caches."""
        self._tokens.close()
        self._running.close()

    @property
    def result(self) -> Generation:
        """The output as far as it is."""
        return Generation.of(self._running)


class Speculator:
    """A target that writes its own text, sooner.

    Args:
        target: The model whose text it is.
        tokenizer: Text to ids and back; None where prompts are token ids and no text is wanted.
        drafter: Makes the drafts; None for plain decoding.
        lengths: How many tokens to draft.
    """

    def __init__(
        self,
        target: Model,
        tokenizer: Tokenizer | None,
        drafter: Drafter | None,
        lengths: Lengths,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.drafter = drafter
        self.lengths = lengths

    @overload
    def generate(self, prompt: UserPrompt, **options: Any) -> Generation: ...

    @overload
    def generate(self, prompt: Sequence[UserPrompt], **options: Any) -> list[Generation]: ...

    def generate(self, prompt: Any, **options: Any) -> Generation | list[Generation]:
        """Generate to the end.

        Args:
            prompt: Text, token ids, or an encoder's features; a list of them gives a list back.
            options: See `Options`.
        """
        if is_one_prompt(prompt):
            return self.generate_all([prompt], **options)[0]
        return self.generate_all(list(prompt), **options)

    def generate_all(self, prompts: Sequence[UserPrompt], **options: Any) -> list[Generation]:
        """Generate for several prompts, in rounds over all of them.

        A target that can score many sessions in one pass scores each round so, and reads the
        prompts so. A seed applies to each prompt as it would alone: a row equals its own solo run.
        """
        running = [self._open(prompt, **options) for prompt in prompts]
        for _ in decode(running):
            pass
        return [Generation.of(r) for r in running]

    def stream(self, prompt: UserPrompt, **options: Any) -> Stream:
        """The tokens as they come, and `.result` for the account."""
        return Stream(self.start(prompt, **options))

    def chat(self, messages: Sequence[Mapping[str, str]], **options: Any) -> Stream:
        """The answer to a conversation of `{"role": ..., "content": ...}` messages, as it comes."""
        return self.stream(self._needs_tokenizer("a chat").chat(messages), **options)

    def remember(self, sessions: int = 1) -> None:
        """Keep what the latest requests' sessions have cached, so that a text is read once.

        A request whose prompt begins as one of their texts did, such as the next turn of a
        conversation, then reads only what is new, and so does a draft model. The output is the
        same. Requests that are running at the same time each need a session of their own.

        Args:
            sessions: How many, of target and draft model each; 0 keeps none, as at first.

        Raises:
            InvalidSetting: It is negative.
            UnsupportedModel: The target's sessions cannot be kept.
        """
        if sessions < 0:
            raise InvalidSetting(
                f"sessions is {sessions}",
                why="so many caches are kept for later requests",
                remedy="set it to 0 or more",
            )
        if not isinstance(self.target, Remembering):
            raise UnsupportedModel(
                f"{self.target.name} cannot keep what its sessions have cached",
                why="another session could not go on from it with the same bits",
                remedy="run the target on the CPU engine (--backend cpu), or read each prompt anew",
            )
        for model in (self.target, None if self.drafter is None else self.drafter.model):
            if isinstance(model, Remembering):
                model.remember(sessions)

    def start(self, prompt: UserPrompt, **options: Any) -> Running:
        """Read the prompt and make the request ready for its first round."""
        running = self._open(prompt, **options)
        try:
            read([running])
        except BaseException:
            running.close()
            raise
        return running

    def _open(self, prompt: UserPrompt, **options: Any) -> Running:
        """A request whose prompt its first round will read, together with others'."""
        request = self.request(prompt, Options.of(options))
        return Running(request, self.target, self.tokenizer, self.drafter, self.lengths)

    def request(self, prompt: UserPrompt, options: Options) -> Request:
        """The request that a prompt and options make."""
        return Request(
            prompt=self._ids(prompt),
            sampling=options.sampling((*self.target.banned, *self._banned(options.banned))),
            limits=options.limits(self.target.eos),
            seed=options.seed,
            rule=options.verify,
            logprobs=options.logprobs,
        )

    def _ids(self, prompt: UserPrompt) -> Prompt:
        if isinstance(prompt, str):
            return self._needs_tokenizer("a text prompt").encode(prompt)
        if isinstance(prompt, np.ndarray) and prompt.ndim == 2:
            return prompt.astype(np.float32)
        return tuple(int(token) for token in prompt)

    def _banned(self, banned: Sequence[str | Sequence[int]]) -> Iterator[tuple[int, ...]]:
        """Token sequences of the banned words: as they begin a text and as they follow a space."""
        for word in banned:
            if isinstance(word, str):
                tokenizer = self._needs_tokenizer("a banned word")
                for form in {word, " " + word.lstrip()}:
                    yield tokenizer.encode(form, special=False)
            else:
                yield tuple(word)

    def _needs_tokenizer(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidSetting(
                f"{what} needs a tokenizer, and none was given",
                why="models read token ids",
                remedy="pass the tokenizer, or give token ids",
            )
        return self.tokenizer


def is_one_prompt(prompt: Any) -> bool:
    """Whether this is one prompt and not a list of them."""
    if isinstance(prompt, str):
        return True
    if isinstance(prompt, np.ndarray):
        return prompt.ndim < 3  # features have two dimensions, and a batch of them three
    return len(prompt) == 0 or isinstance(prompt[0], (int, np.integer))
