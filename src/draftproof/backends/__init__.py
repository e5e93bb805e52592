"""What runs models, behind the ports `Model`, `Session` and `Tokenizer`.

Only the modules of this package import torch, transformers and the compiled CPU engine, and this
file imports none of them: `choice`, `pretrained` and `wrap` do so when they are called.

`choice`      which backend runs a model, and loading it there
`cpu`         the CPU engine
`causal`      decoder-only models
`seq2seq`     encoder-decoder models: T5, BART, Marian, Whisper
`prefix`      the first tokens of their decoders
`tokenizer`   their tokenizers
`pretrained`  loading all of them from a folder or a GGUF file
`gguf_files`  reading a GGUF file once
`wrap`        taking over what a user loaded
`cache`       the cache that makes rewinding free
`session`     one pass over it, shared by both kinds of model
`loaded`      what both kinds read off a loaded model
`weights`     what a model's files say of themselves, read before they are loaded
`runtime`     the extra that is needed, and keeping it quiet
`info`        what reports say of the runtime and of a loaded model
`memory`      allocation failures, and the memory that is there
"""

from draftproof.backends.choice import CpuSettings, Placement, choose, load_on
from draftproof.backends.pretrained import load_model, load_model_and_tokenizer, load_tokenizer
from draftproof.backends.wrap import tokenizer_beside, wrap_model, wrap_tokenizer

__all__ = [
    "CpuSettings",
    "Placement",
    "choose",
    "load_model",
    "load_model_and_tokenizer",
    "load_on",
    "load_tokenizer",
    "tokenizer_beside",
    "wrap_model",
    "wrap_tokenizer",
]
