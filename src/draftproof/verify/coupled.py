"""Keep while equal: the target chooses for itself, and the draft is kept while it agrees.

What it gives depends on the noise behind the choices.

- `rng.Shared`: draft and target meet the same noise, so the text is the one plain decoding gives
  with that seed, for any drafter, draft length and tree (Daliri, Musco, Suresh 2024, arXiv
  2408.07978).
- A draft of point masses: exact whatever the noise, and no rule accepts more
  (`methods` of multi-draft verification call it the target-sampled check).
- Temperature 0: plain comparison with the argmax.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Draft, Law, Origin, Verdict
from draftproof.rng import Chooser


def coupled(draft: Draft, target_laws: Sequence[Law], stream: Chooser) -> Verdict:
    """Emit the target's own choice at each depth while it is among the drafted tokens there."""
    path: list[int] = []
    node = -1
    while True:
        chosen = stream.target(len(path), target_laws[node + 1])
        kept = draft.child(node, chosen)
        if kept is None:
            break
        path.append(kept)
        node = kept
    kind: Origin = "residual" if draft.children(node) else "bonus" if path else "plain"
    return Verdict(len(path), chosen, kind, tuple(path))
