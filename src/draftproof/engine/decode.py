"""Running requests to their end, token by token, and what comes out."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftproof.core import FinishReason, Round, Rule, Token
from draftproof.engine.request import Running
from draftproof.engine.round import play_round
from draftproof.engine.stats import Stats


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished (or interrupted) output.

    `text`, `token_ids` and `tokens` end at the same place; the `rounds` that made them may go on,
    behind a stop string. `seed` is the one that was used, drawn
    where none was given: with `verify="coupled"` it reproduces the text, speculation on or off.
    """

    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[Token, ...]
    finish_reason: FinishReason
    seed: int
    rule: Rule
    prompt_tokens: int
    stats: Stats
    rounds: tuple[Round, ...] = ()

    @classmethod
    def of(cls, running: Running) -> Generation:
        """The output of a request as far as it is."""
        return cls(
            text="".join(token.text for token in running.tokens),
            token_ids=tuple(token.id for token in running.tokens),
            tokens=tuple(running.tokens),
            finish_reason=running.finish_reason or "interrupted",
            seed=running.seed,
            rule=running.rule,
            prompt_tokens=len(running.request.prompt),
            stats=running.stats(),
            rounds=tuple(running.rounds),
        )

    def to_json(self, *, rounds: bool = False) -> dict[str, Any]:
        """What `--json` prints; `logprobs` where they were asked for, and the `rounds`."""
        document: dict[str, Any] = {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "seed": self.seed,
            "rule": self.rule,
            "prompt_tokens": self.prompt_tokens,
            "stats": self.stats.to_json(),
        }
        if any(token.logprob is not None for token in self.tokens):
            document["logprobs"] = [
                {
                    "id": token.id,
                    "logprob": token.logprob,
                    "top": [{"id": i, "logprob": value} for i, value in token.top_logprobs],
                }
                for token in self.tokens
            ]
        if rounds:
            names = ("id", "text", "position", "origin", "source", "p", "q")
            document["rounds"] = [
                {
                    **asdict(account),
                    "tokens": [{name: getattr(token, name) for name in names} for token in tokens],
                }
                for account, tokens in self.by_round()
            ]
        return document

    def by_round(self) -> list[tuple[Round, list[Token]]]:
        """Each round with the tokens that came out of it."""
        tokens: dict[int, list[Token]] = {}
        for token in self.tokens:
            tokens.setdefault(token.round, []).append(token)
        return [(account, tokens.get(i, [])) for i, account in enumerate(self.rounds)]


def decode(requests: Sequence[Running]) -> Generator[tuple[int, Token], None, None]:
    """Play rounds until every request has ended; yields (index of the request, token).

    The caches are freed at the end, also where the consumer walks away or an error or Ctrl-C
    strikes; what was generated until then stays in each `Running`.
    """
    try:
        live = list(requests)
        while live:
            play_round(live)
            for index, running in enumerate(requests):
                for token in running.collect():
                    yield index, token
            live = [running for running in live if running.finish_reason is None]
    finally:
        for running in requests:
            running.close()
