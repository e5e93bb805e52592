"""Text and token ids: streaming text, stop strings, and how two tokenizers compare."""

from draftproof.text.detokenize import Detokenizer
from draftproof.text.retokenize import Retokenizer, continuation
from draftproof.text.samples import sample_lines, sample_texts
from draftproof.text.spelling import Spelling
from draftproof.text.stopping import Stopper
from draftproof.text.vocabulary import common_tokens, shared_ids

__all__ = [
    "Detokenizer",
    "Retokenizer",
    "Spelling",
    "Stopper",
    "common_tokens",
    "continuation",
    "sample_lines",
    "sample_texts",
    "shared_ids",
]
