"""The engine: requests, the one loop body, and what comes out."""

from draftproof.engine.decode import Generation, decode
from draftproof.engine.request import Request, Running
from draftproof.engine.speculator import Options, Speculator, Stream
from draftproof.engine.stats import Stats

__all__ = [
    "Generation",
    "Options",
    "Request",
    "Running",
    "Speculator",
    "Stats",
    "Stream",
    "decode",
]
