"""The rules that decide how much of a draft is kept. They know laws, tokens and noise; no model.

Glossary
--------
p, q        laws of target and draft after standardisation (the paper's letters)
accepted    a drafted token that was kept
residual    the token drawn where a draft was rejected
bonus       the token drawn after a fully accepted draft
plain       a token emitted where nothing was drafted

A rule is a function `(draft, target laws, stream) -> Verdict`, where `target_laws[0]` is the
target's law behind the committed text and `target_laws[i + 1]` that behind the i-th drafted token,
so there is one more of them than drafted tokens. It emits the accepted tokens and one more.

`token` and `block` judge chains, `tree` and `coupled` trees as well.

The code is plain NumPy and runs on arrays of `fractions.Fraction` too: `tests/exact` replays each
rule over every outcome of its noise and compares the law of the output with the target's, exactly.
"""

from draftproof.verify.block import block
from draftproof.verify.coupled import coupled
from draftproof.verify.token import token
from draftproof.verify.tree import tree

__all__ = ["block", "coupled", "token", "tree"]
