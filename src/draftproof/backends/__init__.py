"""Models that transformers runs, behind the ports `Model`, `Session` and `Tokenizer`.

Only the modules of this package import torch and transformers, so importing the package itself
loads neither.

`causal`      decoder-only models
`seq2seq`     encoder-decoder models: T5, BART, Marian, Whisper
`tokenizer`   their tokenizers
`pretrained`  loading all of them from a folder or a GGUF file
`cache`       the cache that makes rewinding free
`session`     one pass over it, shared by both kinds of model
`loaded`      what both kinds read off a loaded model
`gguf_header` what a GGUF file says of itself, read before it is loaded
`memory`      allocation failures, and the memory that is there
"""
