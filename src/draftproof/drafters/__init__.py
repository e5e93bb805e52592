"""What makes drafts: one file per method.

Each is a `ports.Drafter`, made once, that begins a `ports.Proposer` per request:

`DraftModel`
    a smaller model of the same vocabulary.
`PromptLookup`
    copies what followed the last time that the text ended like this. No weights, no training.
`NGram`
    counted tables, unigram to trigram.
"""

from draftproof.drafters.lookup import PromptLookup
from draftproof.drafters.model import DraftModel
from draftproof.drafters.ngram import NGram

__all__ = ["DraftModel", "NGram", "PromptLookup"]
