"""The target's own first layers as the draft (Elhoushi et al., ACL 2024, arXiv 2404.16710).

Nothing is loaded beside the target. Models that were not trained to leave early have poor early
layers, so few drafts are accepted there.
"""

from __future__ import annotations

from collections.abc import Collection

from draftproof.drafters.model import DraftModel
from draftproof.errors import InvalidSetting, UnsupportedModel
from draftproof.ports import Model, Shallowing


class SelfSpec(DraftModel):
    """Drafts by a few of the target's layers under the target's output head.

    Args:
        target: The target.
        layers: How many of its first layers draft.
        allowed: The ids that its tokenizer knows, as for `DraftModel`.

    Raises:
        UnsupportedModel: The target cannot run its first layers alone.
        InvalidSetting: It has no more than `layers`.
    """

    def __init__(
        self, target: Model, layers: int, allowed: int | Collection[int] | None = None
    ) -> None:
        if not isinstance(target, Shallowing):
            raise UnsupportedModel(
                f"{target.name} cannot run its first layers alone",
                why="the drafter selfspec drafts with them",
                remedy="run the target on the CPU engine (--backend cpu), or use another drafter",
            )
        if not 1 <= layers < target.layers:
            raise InvalidSetting(
                f"layers is {layers}, and {target.name} has {target.layers}",
                why="the draft runs some of the target's layers, and fewer than the target",
                remedy=f"set layers from 1 to {target.layers - 1}",
            )
        super().__init__(target.shallow(layers), target.vocab_size, allowed)

    @property
    def name(self) -> str:
        """Its own, since the model's is the target's."""
        return "selfspec"
