"""A draft while it grows: a trunk, and branches beside it where the target can score a tree."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Draft, Law, PointMass


class Growth:
    """Tokens in the order in which a guide is told of them.

    The trunk is a chain. A branch follows a token of the trunk, or the committed text, in the place
    of the trunk's own next token, and may go on by itself.

    Args:
        output: The committed text.
        several: Whether drawn tokens may have others beside them (`ports.Guide.several`).
    """

    def __init__(self, output: Sequence[int], several: bool = False) -> None:
        self.several = several
        self.context = list(output)  # with the trunk
        self.depth = 0  # of the trunk
        self.end = -1  # the trunk's last token, by its number
        self._tokens: list[int] = []
        self._laws: list[Law] = []
        self._parents: list[int] = []
        self._sources: list[str] = []

    @property
    def trunk(self) -> list[int]:
        """The trunk's tokens."""
        return self.context[len(self.context) - self.depth :]

    @property
    def certain(self) -> bool:
        """Whether no token was drawn."""
        return all(isinstance(law, PointMass) for law in self._laws)

    def extend(self, token: int, law: Law, source: str) -> None:
        """The trunk's next token."""
        self._add(token, law, self.end, source)
        self.end = len(self._tokens) - 1
        self.context.append(token)
        self.depth += 1

    def respell(self, tokens: Sequence[int]) -> None:
        """Other certain choices in the place of the trunk's last ones, which have no branches."""
        first = len(self._tokens) - len(tokens)
        self._tokens[first:] = tokens
        self._laws[first:] = map(PointMass, tokens)
        self.context[len(self.context) - len(tokens) :] = tokens

    def beside(self, token: int, law: Law, after: int, source: str) -> int:
        """A token beside the trunk: its number."""
        self._add(token, law, after, source)
        return len(self._tokens) - 1

    def child(self, after: int, token: int) -> int | None:
        """The number of the `token` behind the `after`-th one; None where there is none."""
        pairs = enumerate(zip(self._parents, self._tokens, strict=True))
        return next((node for node, pair in pairs if pair == (after, token)), None)

    def draft(self) -> Draft:
        """What has grown."""
        chain = self.depth == len(self._tokens)
        parents = () if chain and not self.several else tuple(self._parents)
        return Draft(tuple(self._tokens), tuple(self._laws), parents, tuple(self._sources))

    def _add(self, token: int, law: Law, after: int, source: str) -> None:
        self._tokens.append(token)
        self._laws.append(law)
        self._parents.append(after)
        self._sources.append(source)
