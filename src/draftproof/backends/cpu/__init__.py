"""The CPU engine: GGUF files and their tokenizers, without PyTorch."""
