"""The only road from logits to probabilities.

Every token, drafted, residual, bonus or plain, gets its law here, for target and draft alike
("standardised sampling", section 2.2 of Leviathan et al. 2023). A law is a pure function of the
logits and of the tokens before the position, so it is right at every drafted position by
construction.

The order: repetition, presence and frequency penalties, logit bias, bans, temperature, top-k,
top-p, min-p. Ties at the edge of top-k and min-p stay in; at the edge of top-p the lower ids do.
Each filter works on the mass that the one before it left.

A law over 152,000 tokens is needed at every position, so the filters weigh no token that provably
cannot survive them. What they keep is what weighing every token would keep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from draftproof.core import Dense, Float32, Float64, Int64, Law, LogitRow, PointMass
from draftproof.errors import InvalidSetting

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).tiny)
STRONGEST = 1e6  # a penalty beyond this, or below its inverse, would only stand for a ban

# Nucleus: how far below the best logit, in units of the temperature, the first look reaches.
# The tokens below hold at most exp(-18) each: 152,000 of them 0.23 % of what the best one holds.
FIRST_LOOK = 18.0

# Without filters: of a large vocabulary, tokens so far below the best logit, in units of the
# temperature, are weighed in float32. 152,000 of them hold at most 6e-6 of what the best one holds,
# so float32's rounding there moves the law by less than 1e-10.
FAINT = 24.0
LARGE = 8192

# Top-k: the vocabulary is cut into groups of this many tokens, and most groups are ruled out whole.
GROUP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """The settings that shape a law, whatever the vocabulary. The defaults leave the argmax.

    Args:
        temperature: Divides the logits; 0 is the argmax (the lowest id among ties).
        top_k: Keep the k most probable tokens.
        top_p: Keep the fewest most probable tokens that hold this mass, in (0, 1].
        min_p: Keep tokens of at least this times the highest probability, in [0, 1].
        repetition_penalty: Divides positive and multiplies negative logits of tokens met in the
            prompt or the output (Keskar et al. 2019), from 1e-6 to 1e6; 1 is off.
        presence_penalty: Taken off the logit of every token met in the output, -1e6 to 1e6.
        frequency_penalty: Taken off the logit once per occurrence in the output, likewise.
        logit_bias: Added to the logits, by token id. A finite bias leaves the token possible, if
            barely; -inf bans it.

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

    def __post_init__(self) -> None:
        additive = f"from {-STRONGEST:g} to {STRONGEST:g}; 0 is off"
        ranges = {
            "temperature": (0 <= self.temperature < math.inf, "0 (argmax) or above, and finite"),
            "top_k": (self.top_k is None or self.top_k >= 1, "at least 1, or left out"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (0 <= self.min_p <= 1, "from 0 to 1"),
            "repetition_penalty": (
                1 / STRONGEST <= self.repetition_penalty <= STRONGEST,
                f"from {1 / STRONGEST:g} to {STRONGEST:g}; 1 is off",
            ),
            "presence_penalty": (abs(self.presence_penalty) <= STRONGEST, additive),
            "frequency_penalty": (abs(self.frequency_penalty) <= STRONGEST, additive),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling(Shaping):
    """How the target's logits become a law.

    Args:
        banned: Token sequences that must not be completed; a single token is a sequence of one.
            The other settings are those of `Shaping`.

    Raises:
        InvalidSetting: A value is out of range.
    """

    banned: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        Shaping.__post_init__(self)  # `super()` would be of the class before it got its slots
        if not all(self.banned):
            raise InvalidSetting(
                "a banned sequence is empty",
                why="every position would complete it",
                remedy="leave empty sequences out of `banned`",
            )


def check_vocabulary(sampling: Sampling, vocab_size: int) -> None:
    """Refuse token ids that the target does not have.

    Args:
        sampling: A request's settings.
        vocab_size: Rows of the target's output head.

    Raises:
        InvalidSetting: `logit_bias` or `banned` names an id outside of it.
    """
    named: list[tuple[str, Iterable[int]]] = [("logit_bias", sampling.logit_bias)]
    named += [("banned", sequence) for sequence in sampling.banned]
    for name, ids in named:
        for token in ids:
            if not 0 <= token < vocab_size:
                raise InvalidSetting(
                    f"{name} names token {token}",
                    why=f"the target's token ids run from 0 to {vocab_size - 1}",
                    remedy=f"take ids for {name} from the target's own tokenizer",
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
    _prompt_ids: Int64[np.ndarray, "distinct"] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ids = np.unique(np.array(self.prompt, dtype=np.int64))
        object.__setattr__(self, "_prompt_ids", ids)

    def law(self, logits: LogitRow, output: Sequence[int]) -> Law:
        """The law at the position after `output`.

        Args:
            logits: The model's logits there; -inf excludes a token.
            output: The output tokens before the position, drafted ones included.

        Raises:
            InvalidSetting: The bans leave no token.
        """
        scores = self._adjust(logits, output)
        best = int(np.argmax(scores))
        if scores[best] == -np.inf:
            raise InvalidSetting(
                f"no token is allowed at output position {len(output)}",
                why="the bans and biases together exclude the whole vocabulary",
                remedy="ban fewer tokens, or lower min_tokens",
            )
        if self.sampling.temperature == 0:
            return PointMass(best)
        return Dense(probabilities(scores, float(scores[best]), self.sampling))

    def _adjust(self, logits: LogitRow, output: Sequence[int]) -> LogitRow:
        """Penalties, bias and bans; the input itself where nothing applies."""
        settings = self.sampling
        counted = settings.presence_penalty or settings.frequency_penalty
        bans = self._bans(output, len(logits))
        if not (bans or settings.logit_bias or counted or settings.repetition_penalty != 1):
            return logits
        scores = logits.copy()
        if settings.repetition_penalty != 1:
            seen = np.union1d(self._prompt_ids, np.array(output, dtype=np.int64))
            seen = seen[seen < len(scores)]
            values = scores[seen].astype(np.float64)
            penalty = settings.repetition_penalty
            scores[seen] = _narrow(np.where(values > 0, values / penalty, values * penalty))
        if counted:
            seen, counts = np.unique(np.array(output, dtype=np.int64), return_counts=True)
            penalties = settings.presence_penalty + settings.frequency_penalty * counts
            scores[seen] = _narrow(scores[seen] - penalties)
        if settings.logit_bias:
            ids = np.array([*settings.logit_bias], dtype=np.int64)
            scores[ids] = _narrow(scores[ids] + np.array([*settings.logit_bias.values()], float))
        scores[bans] = -np.inf
        return scores

    def _bans(self, output: Sequence[int], vocab_size: int) -> list[int]:
        """The tokens that may not come next."""
        bans = [s[-1] for s in self.sampling.banned if _ends_with(self.prompt, output, s[:-1])]
        own: set[int] = set()
        if len(output) < self.min_tokens:
            own |= self.eos
        if not output:
            own |= self.banned_first
        # A model's own settings may name ids that it has no logits for: nothing to ban there.
        return bans + [token for token in own if 0 <= token < vocab_size]


def _narrow(values: Float64[np.ndarray, "tokens"]) -> Float32[np.ndarray, "tokens"]:
    """To float32 without overflow: what was finite stays finite, -inf stays -inf."""
    return np.where(values == -np.inf, values, values.clip(-LARGEST, LARGEST)).astype(np.float32)


def _ends_with(prompt: Sequence[int], output: Sequence[int], suffix: Sequence[int]) -> bool:
    n = len(suffix)
    return n == 0 or tuple([*prompt[-n:], *output[-n:]][-n:]) == tuple(suffix)


def probabilities(scores: LogitRow, top: float, settings: Sampling) -> Float64[np.ndarray, "vocab"]:
    """Temperature, top-k, top-p and min-p, then normalise.

    Args:
        scores: Adjusted logits, the highest of them finite.
        top: The highest.
        settings: With a temperature above 0.
    """
    heat = settings.temperature
    ids = None  # what the filters left, rising or not; None stands for every token
    with np.errstate(over="ignore", under="ignore"):
        if settings.top_k is not None and settings.top_k < len(scores):
            ids = most_probable(scores, settings.top_k)
        if settings.top_p < 1:
            left = scores if ids is None else scores[ids]
            inner = nucleus(left, top, heat, settings.top_p)
            ids = inner if ids is None else ids[inner]
        if settings.min_p > 0:
            if ids is None:
                reach = 1e-9 - math.log(settings.min_p)  # with a margin for the rounding
                ids = np.flatnonzero(scores > below(top, reach * heat))
            ids = ids[weigh(scores[ids], top, heat) >= settings.min_p]
        if ids is None:
            probs = weigh_all(scores, top, heat)
            probs /= probs.sum()
            return probs
        weights = weigh(scores[ids], top, heat)
    probs = np.zeros(len(scores))
    probs[ids] = weights / weights.sum()
    return probs


def weigh(
    scores: Float32[np.ndarray, "tokens"], top: float, heat: float
) -> Float64[np.ndarray, "tokens"]:
    """Probabilities at temperature `heat`, as multiples of that of a token of score `top`."""
    weights: Float64[np.ndarray, "tokens"] = scores.astype(np.float64)
    weights -= top
    weights /= heat
    np.exp(weights, out=weights)
    return weights


def weigh_all(
    scores: Float32[np.ndarray, "vocab"], top: float, heat: float
) -> Float64[np.ndarray, "vocab"]:
    """What `weigh` gives, with the faint tokens in float32: a third of the time at 152,000."""
    near = np.flatnonzero(scores > below(top, FAINT * heat))
    if len(scores) < LARGE or 4 * len(near) > len(scores):  # then the detour saves nothing
        return weigh(scores, top, heat)
    rough = scores - np.float32(top)
    rough *= np.float32(min(max(1 / heat, SMALLEST), LARGEST))  # not 0: -inf stays what it is
    weights: Float64[np.ndarray, "vocab"] = np.exp(rough, out=rough).astype(np.float64)
    weights[near] = weigh(scores[near], top, heat)
    return weights


def below(top: float, distance: float) -> np.float32:
    """A float32 just under `top - distance`."""
    return np.float32(np.nextafter(np.float32(top - distance), np.float32(-np.inf)))


def most_probable(scores: LogitRow, k: int) -> Int64[np.ndarray, "kept"]:
    """The k highest scores, and whatever ties with the last of them, by rising id.

    k groups hold a score as high as the k-th best of the groups' maxima, so the k-th best score is
    no lower, and only tokens from there up need sorting.
    """
    groups = len(scores) // GROUP
    ids = np.arange(len(scores))
    if k <= groups:
        maxima = scores[: groups * GROUP].reshape(GROUP, groups).max(axis=0)
        ids = np.flatnonzero(scores >= np.partition(maxima, -k)[-k])
    candidates = scores[ids]
    kept: Int64[np.ndarray, "kept"] = ids[candidates >= np.partition(candidates, -k)[-k]]
    return kept


def nucleus(
    scores: Float32[np.ndarray, "tokens"], top: float, heat: float, top_p: float
) -> Int64[np.ndarray, "kept"]:
    """Where the fewest tokens stand, by falling weight and rising index, that hold `top_p`.

    The first look weighs the tokens near the best one and bounds the mass of the others by their
    number times the lightest weight looked at. Where even that much more mass would not lengthen
    the nucleus, it is final; else the second look weighs every token.
    """
    for reach in (FIRST_LOOK, math.inf):
        floor = below(top, reach * heat)
        near = np.flatnonzero(scores > floor)
        weights = weigh(scores[near], top, heat)
        falling = np.sort(weights)[::-1]
        held = np.cumsum(falling)
        unseen = (len(scores) - len(near)) * math.exp((float(floor) - top) / heat)
        last, latest = np.searchsorted(held, [top_p * held[-1], top_p * (held[-1] + unseen)])
        if last == latest:
            break
    above = near[weights > falling[last]]
    ties = near[weights == falling[last]]
    return np.concatenate([above, ties[: last + 1 - len(above)]])


def log_softmax(logits: LogitRow) -> Float64[np.ndarray, "vocab"]:
    """The model's own log-probabilities, before any sampling setting."""
    wide: Float64[np.ndarray, "vocab"] = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    return wide
