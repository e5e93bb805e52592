"""Keep while equal: the target chooses for itself, and the draft is kept while it agrees.

What it gives depends on the noise behind the choices.

- `rng.Shared`: draft and target meet the same noise, so the text is the one plain decoding gives
  with that seed, for any drafter and draft length (Daliri, Musco, Suresh 2024, arXiv 2408.07978).
- A draft of point masses: exact whatever the noise, and no rule accepts more
  (`methods` of multi-draft verification call it the target-sampled check).
- Temperature 0: plain comparison with the argmax.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Draft, Law, Verdict
from draftproof.rng import Chooser


def coupled(draft: Draft, target_laws: Sequence[Law], stream: Chooser) -> Verdict:
    """Emit the target's own choice at each position while the draft made the same one."""
    for i, x in enumerate(draft.tokens):
        chosen = stream.target(i, target_laws[i])
        if chosen != x:
            return Verdict(i, chosen, "residual")
    g = len(draft)
    return Verdict(g, stream.target(g, target_laws[g]), "bonus" if g else "plain")
