"""Text and token ids: streaming text, stop strings, and whether two tokenizers agree."""

from draftproof.text.detokenize import Detokenizer
from draftproof.text.stopping import Stopper
from draftproof.text.vocabulary import shared_ids

__all__ = ["Detokenizer", "Stopper", "shared_ids"]
