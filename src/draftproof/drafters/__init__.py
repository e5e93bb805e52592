"""What makes drafts: one file per method.

Each is a `ports.Drafter`, made once, that begins a `ports.Proposer` per request:

`DraftModel`
    a smaller model of the same vocabulary.
`SelfSpec`
    the target's own first layers.
`CrossVocab`
    a model with another tokenizer.
`Mix`
    a model and `SuffixDrafter` in one draft, token by token.
`PromptLookup`
    copies what followed the last time that the text ended like this. No weights, no training.
`NGram`
    counted tables, unigram to trigram.
`SuffixDrafter`
    copies what mostly followed the longest match in the request's text and in `PastOutputs`.
"""

from draftproof.drafters.crossvocab import CrossVocab
from draftproof.drafters.lookup import PromptLookup
from draftproof.drafters.mix import Mix
from draftproof.drafters.model import DraftModel
from draftproof.drafters.ngram import NGram
from draftproof.drafters.past import PastOutputs
from draftproof.drafters.selfspec import SelfSpec
from draftproof.drafters.suffix import SuffixDrafter

__all__ = [
    "CrossVocab",
    "DraftModel",
    "Mix",
    "NGram",
    "PastOutputs",
    "PromptLookup",
    "SelfSpec",
    "SuffixDrafter",
]
