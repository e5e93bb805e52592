"""The merges of a SentencePiece vocabulary, which holds only tokens and their scores.

SentencePiece joins two neighbours wherever the token that they make has the best score of all. The
`tokenizers` library joins by a list of pairs, best first, which is derived here: every way to cut a
token in two tokens. A vocabulary of 262,144 tokens has two million cuts, so they are looked up by
hashes, with NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from draftproof.core import Float64, Int64, Shaped

Ints: TypeAlias = Int64[np.ndarray, "each"]
Hashes: TypeAlias = Shaped[np.ndarray, "each"]  # uint64

BASE = 0xD1342543DE82EF95  # of the polynomial hash, modulo 2**64; odd, so that it has an inverse
MIX = 0x9E3779B97F4A7C15
SLOT_BITS = 20  # of a hash


def merges_of(
    tokens: Sequence[str], priorities: Float64[np.ndarray, "vocab"]
) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, in the order in which they are to be joined.

    Args:
        tokens: The vocabulary, each string once.
        priorities: Per token; the highest is made first. Among the cuts of equal priority those
            with the longest left part go first, then those with the longest right part, then those
            of the token with the lower id: the order in which transformers lists them.
    """
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    ends = np.cumsum(lengths)
    owner, left, right = _cuts("".join(tokens), ends - lengths, ends)
    order = np.lexsort((owner, -lengths[right], -lengths[left], -priorities[owner]))
    token = tokens.__getitem__
    return list(
        zip(map(token, left[order].tolist()), map(token, right[order].tolist()), strict=True)
    )


def _cuts(
    text: str, starts: Int64[np.ndarray, "vocab"], ends: Int64[np.ndarray, "vocab"]
) -> tuple[Ints, Ints, Ints]:
    """Of each cut of a token in two tokens: the token, its left part, its right part.

    Args:
        text: All tokens, one after another.
        starts: Where each begins.
        ends: Where each ends.
    """
    hashes = _Hashes(text)
    whole = hashes.of(starts, ends)
    owner = np.repeat(np.arange(len(starts)), np.maximum(ends - starts - 1, 0))
    inner = np.ones(len(text), bool)
    inner[starts[starts < ends]] = False
    cut = np.flatnonzero(inner)

    table = _Table(whole)
    left = table.find(hashes.of(starts[owner], cut))
    found = left >= 0
    owner, cut, left = owner[found], cut[found], left[found]
    right = table.find(hashes.of(cut, ends[owner]))
    found = right >= 0
    return owner[found], left[found], right[found]


class _Table:
    """The index of each of many hashes, by its first bits; where several share those, by search."""

    def __init__(self, whole: Hashes) -> None:
        self._whole = whole
        indices = np.arange(len(whole), dtype=np.int32)
        self._slots = np.full(1 << SLOT_BITS, -1, np.int32)
        self._slots[_slot(whole)] = indices
        crowded = np.flatnonzero(self._slots[_slot(whole)] != indices)
        self._crowded = crowded[np.argsort(whole[crowded])]

    def find(self, wanted: Hashes) -> Ints:
        """The index of each of `wanted`; -1 where it is not among the hashes."""
        found: Ints = self._slots[_slot(wanted)].astype(np.int64)
        # An empty slot holds -1, which looks at the last hash: no harm, it is compared.
        missed = np.flatnonzero(self._whole[found] != wanted)
        found[missed] = -1
        if len(self._crowded):
            ranked = self._whole[self._crowded]
            place = np.minimum(np.searchsorted(ranked, wanted[missed]), len(ranked) - 1)
            hit = ranked[place] == wanted[missed]
            found[missed[hit]] = self._crowded[place[hit]]
        return found


def _slot(hashes: Hashes) -> Hashes:
    slots: Hashes = hashes >> np.uint64(64 - SLOT_BITS)
    return slots


class _Hashes:
    """Hashes of parts of a text, each in constant time: the differences of a running sum."""

    def __init__(self, text: str) -> None:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        mixed = (codes.astype(np.uint64) + np.uint64(1)) * np.uint64(MIX)
        mixed ^= mixed >> np.uint64(29)
        self._sums = np.zeros(len(text) + 1, np.uint64)
        np.cumsum(mixed * _powers(BASE, len(text)), out=self._sums[1:])
        self._inverses = _powers(pow(BASE, -1, 1 << 64), len(text) + 1)

    def of(self, starts: Ints, ends: Ints) -> Hashes:
        """The hash of the text between each start and its end."""
        parts: Hashes = (self._sums[ends] - self._sums[starts]) * self._inverses[starts]
        return parts


def _powers(base: int, count: int) -> Hashes:
    """The first powers of `base`, from its zeroth, modulo 2**64."""
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)
