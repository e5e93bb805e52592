"""Speculative decoding for off-the-shelf language models: exact by proof, fast where it counts.

    import draftproof as dp

    model = dp.load("smollm2-135m", draft="lookup")
    for token in model.stream("Speculative decoding is"):
        print(token, end="")

Importing this loads no runtime: it comes with the first model.
"""

from __future__ import annotations

from draftproof.core import Dense, Draft, Law, PointMass, Round, Token, Verdict
from draftproof.engine import Generation, Speculator, Stats, Stream
from draftproof.errors import DraftproofError
from draftproof.load import from_transformers, load

__version__ = "0.1.0"

__all__ = [
    "Dense",
    "Draft",
    "DraftproofError",
    "Generation",
    "Law",
    "PointMass",
    "Round",
    "Speculator",
    "Stats",
    "Stream",
    "Token",
    "Verdict",
    "__version__",
    "from_transformers",
    "load",
]
