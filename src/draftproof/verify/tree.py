"""Greedy multi-draft verification, walked down a tree: Hu et al. (ICLR 2025), arXiv 2502.18779.

Several candidates for one position are judged together. The rule costs no more than the token rule:
one coin, and at most one draw.

q is the law of the one candidate that was sampled, given the certain ones: where a drafter takes
its k - 1 most probable tokens for certain and draws the last candidate from the rest, q is that
rest, renormalised.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Draft, Law, PointMass, Verdict
from draftproof.rng import Stream
from draftproof.verify.token import acceptance, residual


def tree(draft: Draft, target_laws: Sequence[Law], stream: Stream) -> Verdict:
    """Walk from the committed text along accepted tokens until a rejection or a leaf.

    At a node whose children are certain but for x, which was drawn from q: keep x with probability
    min(1, p(x) / q(x)). Otherwise draw y from norm([p - q]_+), which is p less what x stood for, so
    that the token has the law p however the children were chosen. Where y is itself a child, the
    walk goes on from there. The walk goes on with probability
    P(T) + sum over x outside T of min(p(x), q(x)), T being the certain children; no rule does
    better with these candidates.

    Where all children are certain, the first of them is the x. A chain is judged as by `token`.

    Args:
        draft: The drafted tokens; the i-th was drawn from the i-th law.
        target_laws: The law behind the committed text, then that behind each drafted token.
        stream: Noise, addressed by the depth in the tree.
    """
    path: list[int] = []
    node = -1
    while children := draft.children(node):
        depth, p = len(path), target_laws[node + 1]
        first = children[0]
        x = next((c for c in children if not isinstance(draft.laws[c], PointMass)), first)
        q = draft.laws[x]
        if stream.accept(depth, acceptance(p, q, draft.tokens[x])):
            node = x
        else:
            y = stream.target(depth, residual(p, q))
            walked = draft.child(node, y)
            if walked is None:
                return Verdict(depth, y, "residual", tuple(path))
            node = walked
        path.append(node)
    bonus = stream.target(len(path), target_laws[node + 1])
    return Verdict(len(path), bonus, "bonus" if path else "plain", tuple(path))
