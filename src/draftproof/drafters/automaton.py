"""A suffix automaton that grows by a token at a time and counts what followed each context.

A state stands for the token strings that end at the same places of the text (Blumer et al. 1985,
"The smallest automaton recognizing the subwords of a text"). A text of n tokens has at most 2n of
them and 3n transitions, and a new token costs constant time, averaged over the text. Beside that
each state holds how often and how lately its strings occurred, and which token followed most often.
A new token adds one to every state on the way from the text's end to the root, so that counting is
bounded by `depth`: it is exact for contexts of up to `depth` tokens and absent for longer ones.

Half the states are prefixes of the text, whose commonest transition is the text itself and is not
stored: the prefix of i tokens is state 2i, and the states that were split off have odd numbers.
About 200 bytes per token of text.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TypeAlias

# A state and how many tokens of its string count. At least one token followed them, or it is ROOT.
Place: TypeAlias = "tuple[int, int]"
ROOT: Place = (0, 0)

# Ends a document: it follows contexts, but is never a continuation nor part of a context.
END = -1


class Automaton:
    """What followed every string of the text.

    Args:
        depth: Most tokens of a context, at least 1.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.text = array("i")
        # By state; of the pair of entries that a token adds, the odd one may stay unused.
        self._length = array("i", (0, 0))  # of its longest string
        self._link = array("i", (-1, -1))  # the state of its longest string's longest other suffix
        self._count = array("i", (0, 0))  # occurrences
        self._seen = array("i", (0, 0))  # where the last of them ended
        self._best = array("i", (-1, -1))  # the most frequent next token, the latest among equals
        self._more: list[dict[int, int] | None] = [None, None]  # transitions that are stored
        self._split = -1  # the last odd state
        self._tail = 0  # the state of the text's last `_span` tokens
        self._span = 0

    def __len__(self) -> int:
        """Tokens of text, ends of documents included."""
        return len(self.text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._grow(token)
            self._tally(token)

    def end(self) -> None:
        """End the document: no context reaches over its end."""
        self._grow(END)
        self._tail = self._span = 0

    def place(self) -> Place:
        """The longest end of the text that occurred before and was followed by something."""
        length = min(self._span, self.depth)
        return self._settle(self._shorten(self._tail, length), length)

    def advance(self, place: Place, token: int) -> Place:
        """The same for the place's string and a further token."""
        state, length = place
        target = self._step(state, token)
        while target < 0:
            if not state:
                return ROOT
            state = self._link[state]
            length = self._length[state]
            target = self._step(state, token)
        length = min(length + 1, self.depth)
        return self._settle(self._shorten(target, length), length)

    def best(self, place: Place) -> tuple[int, int]:
        """What followed the place's string most often, the latest among equals, and how often."""
        token = self._best[place[0]]
        return token, self._count[self._step(place[0], token)]

    def total(self, place: Place) -> int:
        """How often the place's string occurred, without the text's own end."""
        state = place[0]
        return self._count[state] - (self._seen[state] == len(self.text))

    def followers(self, place: Place) -> list[tuple[int, int]]:
        """All that followed the place's string, and how often: most often and latest first."""
        state = place[0]
        found = dict(self._more[state] or ())
        if not state & 1 and state >> 1 < len(self.text):
            found[self.text[state >> 1]] = state + 2
        found.pop(END, None)
        count, seen = self._count, self._seen
        ranked = sorted(found.items(), key=lambda item: (-count[item[1]], -seen[item[1]]))
        return [(token, count[target]) for token, target in ranked]

    def _step(self, state: int, token: int) -> int:
        """The state after `token`; -1 where it never followed."""
        if not state & 1:
            at = state >> 1
            if at < len(self.text) and self.text[at] == token:
                return state + 2
        more = self._more[state]
        return -1 if more is None else more.get(token, -1)

    def _shorten(self, state: int, length: int) -> int:
        """The state of the last `length` tokens of a string of `state`."""
        while state and self._length[self._link[state]] >= length:
            state = self._link[state]
        return state

    def _settle(self, state: int, length: int) -> Place:
        """The longest end of a string of `length` tokens in `state` that something followed."""
        while state and self._best[state] < 0:
            state = self._link[state]
            length = self._length[state]
        return state, length

    def _grow(self, token: int) -> None:
        """Add the prefix that ends with `token`, and the transitions that lead to it."""
        last = 2 * len(self.text)
        new = last + 2
        self.text.append(token)
        self._length.extend((len(self.text), 0))
        self._link.extend((0, 0))
        self._count.extend((0, 0))
        self._seen.extend((0, 0))
        self._best.extend((-1, -1))
        self._more.extend((None, None))
        state = self._link[last]
        while state >= 0:
            target = self._step(state, token)
            if target >= 0:
                if self._length[target] != self._length[state] + 1:
                    target = self._split_off(state, token, target)
                self._link[new] = target
                return
            more = self._more[state]
            if more is None:
                self._more[state] = {token: new}
            else:
                more[token] = new
            state = self._link[state]

    def _split_off(self, state: int, token: int, target: int) -> int:
        """Give the strings of `target` that occur after `state` too a state of their own."""
        self._split += 2
        split = self._split
        self._length[split] = self._length[state] + 1
        self._link[split] = self._link[target]
        self._count[split] = self._count[target]
        self._seen[split] = self._seen[target]
        self._best[split] = self._best[target]
        more = dict(self._more[target] or ())
        if not target & 1 and target >> 1 < len(self.text):
            more[self.text[target >> 1]] = target + 2
        self._more[split] = more
        self._link[target] = split
        # A transition that is not stored leads to a state one token longer: never to `target` here.
        while state >= 0:
            transitions = self._more[state]
            if transitions is None or transitions.get(token) != target:
                break
            transitions[token] = split
            state = self._link[state]
        return split

    def _tally(self, token: int) -> None:
        """Count the token behind every context that it ends."""
        link, count, best = self._link, self._count, self._best
        state = self._shorten(self._tail, self._span)  # part of it may have been split off
        self._span = min(self._span + 1, self.depth + 1)
        self._tail = target = self._shorten(self._step(state, token), self._span)
        here = len(self.text)
        while target:
            count[target] += 1
            self._seen[target] = here
            target = link[target]
        state = self._shorten(state, min(self._span - 1, self.depth))
        while state >= 0:
            old = best[state]
            if old != token and (
                old < 0 or count[self._step(state, token)] >= count[self._step(state, old)]
            ):
                best[state] = token
            state = link[state]
