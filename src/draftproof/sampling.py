"""The only road from logits to probabilities.

Every token, drafted, residual, bonus or plain, gets its law here, for target and draft alike
("standardised sampling", section 2.2 of Leviathan et al. 2023). A law is a pure function of the
logits and of the tokens before the position, so it is right at every drafted position by
construction.

The order: repetition, presence and frequency penalties, logit bias, bans, temperature, top-k,
top-p, min-p. Ties at the edge of top-k and min-p stay in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, Shaped

from draftproof.core import Dense, Law, LogitRow, PointMass
from draftproof.errors import InvalidSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the target's logits become a law. The defaults leave the argmax.

    Args:
        temperature: Divides the logits; 0 is the argmax (the lowest id among ties).
        top_k: Keep the k most probable tokens.
        top_p: Keep the fewest most probable tokens that hold this mass, in (0, 1].
        min_p: Keep tokens of at least this times the highest probability, in [0, 1].
        repetition_penalty: Divides positive and multiplies negative logits of tokens met in the
            prompt or the output (Keskar et al. 2019), above 0; 1 is off.
        presence_penalty: Taken off the logit of every token met in the output.
        frequency_penalty: Taken off the logit once per occurrence in the output.
        logit_bias: Added to the logits, by token id.
        banned: Token sequences that must not be completed; a single token is a sequence of one.

    Raises:
        InvalidSetting: A value is out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        ranges = {
            "temperature": (0 <= self.temperature < math.inf, "0 (argmax) or above, and finite"),
            "top_k": (self.top_k is None or self.top_k >= 1, "at least 1, or left out"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (0 <= self.min_p <= 1, "from 0 to 1"),
            "repetition_penalty": (0 < self.repetition_penalty < math.inf, "above 0; 1 is off"),
            "presence_penalty": (math.isfinite(self.presence_penalty), "a finite number"),
            "frequency_penalty": (math.isfinite(self.frequency_penalty), "a finite number"),
        }
        for name, (holds, allowed) in ranges.items():
            if not holds:
                raise InvalidSetting(
                    f"{name} is {getattr(self, name)}",
                    why="no law over tokens follows from that value",
                    remedy=f"set {name} to {allowed}",
                )
        for token, bias in self.logit_bias.items():
            if math.isnan(bias) or bias == math.inf:
                raise InvalidSetting(
                    f"logit_bias of token {token} is {bias}",
                    why="a bias is added to a logit, and the sum must stay a number",
                    remedy="use a finite bias, or -inf to ban the token",
                )
        if not all(self.banned):
            raise InvalidSetting(
                "a banned sequence is empty",
                why="every position would complete it",
                remedy="leave empty sequences out of `banned`",
            )


@dataclass(frozen=True, slots=True)
class Standardiser:
    """The laws of one request: its sampling settings, its prompt, and where it may end.

    Args:
        sampling: The settings.
        prompt: The decoder's tokens before the first output token.
        eos: Banned until `min_tokens` tokens are out.
        min_tokens: See `eos`.
        banned_first: Tokens banned at the first output position only.
    """

    sampling: Sampling
    prompt: tuple[int, ...] = ()
    eos: frozenset[int] = frozenset()
    min_tokens: int = 0
    banned_first: frozenset[int] = frozenset()

    def law(self, logits: LogitRow, output: Sequence[int]) -> Law:
        """The law at the position after `output`.

        Args:
            logits: The model's logits there.
            output: The output tokens before the position, drafted ones included.

        Raises:
            InvalidSetting: The bans leave no token.
        """
        scores = self._adjust(logits, output)
        best = int(np.argmax(scores))
        if scores[best] == -np.inf:
            raise InvalidSetting(
                f"no token may follow output position {len(output) - 1}",
                why="the bans and biases together exclude the whole vocabulary",
                remedy="ban fewer tokens, or lower min_tokens",
            )
        if self.sampling.temperature == 0:
            return PointMass(best)
        with np.errstate(over="ignore", under="ignore"):
            shifted = (scores.astype(np.float64) - float(scores[best])) / self.sampling.temperature
            return Dense(truncate(np.exp(shifted), self.sampling))

    def _adjust(self, logits: LogitRow, output: Sequence[int]) -> LogitRow:
        """Penalties, bias and bans; the input itself where nothing applies."""
        settings = self.sampling
        scores = logits.copy()
        if settings.repetition_penalty != 1:
            seen = np.unique(np.array([*self.prompt, *output], dtype=np.int64))
            seen = seen[seen < len(scores)]
            values = scores[seen]
            penalty = np.float32(settings.repetition_penalty)
            scores[seen] = np.where(values > 0, values / penalty, values * penalty)
        if (settings.presence_penalty or settings.frequency_penalty) and output:
            seen, counts = np.unique(np.array(output, dtype=np.int64), return_counts=True)
            scores[seen] -= np.float32(settings.presence_penalty)
            scores[seen] -= (counts * settings.frequency_penalty).astype(np.float32)
        for token, bias in settings.logit_bias.items():
            scores[token] += np.float32(bias)
        scores[self._bans(output)] = -np.inf
        return scores

    def _bans(self, output: Sequence[int]) -> list[int]:
        """The tokens that may not come next."""
        bans = [s[-1] for s in self.sampling.banned if _ends_with(self.prompt, output, s[:-1])]
        if len(output) < self.min_tokens:
            bans.extend(self.eos)
        if not output:
            bans.extend(self.banned_first)
        return bans


def _ends_with(prompt: Sequence[int], output: Sequence[int], suffix: Sequence[int]) -> bool:
    n = len(suffix)
    return n == 0 or tuple([*prompt[-n:], *output[-n:]][-n:]) == tuple(suffix)


def truncate(
    weights: Float64[np.ndarray, "vocab"], settings: Sampling
) -> Float64[np.ndarray, "vocab"]:
    """Top-k, top-p and min-p on unnormalised probabilities, then normalise."""
    if settings.top_k is not None and settings.top_k < len(weights):
        edge = np.partition(weights, -settings.top_k)[-settings.top_k]
        weights = np.where(weights >= edge, weights, 0)
    if settings.top_p < 1:
        kept = nucleus(weights, settings.top_p)
        nucleus_weights = np.zeros_like(weights)
        nucleus_weights[kept] = weights[kept]
        weights = nucleus_weights
    if settings.min_p > 0:
        weights = np.where(weights >= settings.min_p * weights.max(), weights, 0)
    probs: Float64[np.ndarray, "vocab"] = weights / weights.sum()
    return probs


def nucleus(weights: Float64[np.ndarray, "vocab"], top_p: float) -> Shaped[np.ndarray, "kept"]:
    """The fewest tokens, by falling weight and rising id, that hold `top_p` of the mass.

    Tokens lighter than (1 - top_p) / vocab of the mass hold less than 1 - top_p together, so the
    nucleus lies among the rest, and only those need sorting.
    """
    total = weights.sum()
    (candidates,) = np.nonzero(weights > total * (1 - top_p) / len(weights))
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    needed = int(np.searchsorted(np.cumsum(weights[order]), top_p * total)) + 1
    return order[:needed]


def log_softmax(logits: LogitRow) -> Float64[np.ndarray, "vocab"]:
    """The model's own log-probabilities, before any sampling setting."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    logs: Float64[np.ndarray, "vocab"] = wide - np.log(np.exp(wide).sum())
    return logs
