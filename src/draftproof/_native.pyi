"""draftproof's CPU engine; draftproof.backends.cpu is what to use."""

from collections.abc import Sequence as _Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def kernels() -> list:
    """Names of the kernels that run here, fastest first."""

TYPES: dict = ...

class Matrix:
    """A matrix in the layout that the kernels read."""

    def __init__(self, type: str, rows: int, cols: int, source: Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)]) -> None:
        """Pack the bytes of a file's tensor. Raises ValueError."""

    @property
    def type(self) -> str: ...

    @property
    def rows(self) -> int: ...

    @property
    def cols(self) -> int: ...

    @property
    def panels(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    def row(self, index: int) -> NDArray[numpy.float32]:
        """One row as float32 [cols]."""

    def matmul(self, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], kernels: str, begin: int = 0, end: int | None = None) -> NDArray[numpy.float32]:
        """
        x [n, cols] to [n, rows]; zeros where the panels begin..end do not reach.
        """

def quantize(kernels: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple:
    """One row to (quants, scales, scaled sums, sums)."""

def rms_norm(kernels: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], epsilon: float) -> NDArray[numpy.float32]: ...

def silu_mul(kernels: str, gate: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], up: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> NDArray[numpy.float32]: ...

def gelu_mul(kernels: str, gate: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], up: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> NDArray[numpy.float32]: ...

def attention_scores(kernels: str, query: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], keys: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> NDArray[numpy.float32]:
    """query [heads, dim] and fp16 bits of keys [dim, 16] to [heads, 16]."""

def softmax(kernels: str, scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple:
    """
    (exp(score - max), padded with zeros to a multiple of 16, and their sum).
    """

def attention_values(kernels: str, weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> NDArray[numpy.float32]:
    """
    out plus weights [heads, positions] times fp16 bits of values [positions, dim].
    """

def to_half(kernels: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> NDArray[numpy.uint16]: ...

def from_half(kernels: str, x: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> NDArray[numpy.float32]: ...

TENSOR_TYPES: tuple = ...

class GgufError(ValueError):
    pass

class GgufUnsupported(GgufError):
    pass

class Gguf:
    """
    A GGUF file, mapped into memory, its header read and checked.

    Raises OSError, GgufError (damaged) or its kind GgufUnsupported.
    """

    def __init__(self, path: object) -> None: ...

    @property
    def metadata(self) -> object:
        """
        The metadata by key. Strings that are not UTF-8 hold their bytes as surrogateescape
        makes them; arrays of numbers are read-only numpy arrays, others lists.
        """

    @property
    def tensors(self) -> object:
        """
        (type, shape) by name: the type's name or, if it has none, its code; the shape as in
        the file, columns first.
        """

    @property
    def version(self) -> int:
        """Of the format: 2 or 3."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    @property
    def data_offset(self) -> int:
        """Where the tensors' data begin, in bytes."""

    def tensor(self, name: str) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """
        The bytes of a tensor as they are in the file, uint8, read-only and not copied.

        Raises GgufError if it is missing or of a type that is not read.
        """

class CacheFull(MemoryError):
    pass

class BadWeights(ValueError):
    pass

class Sequence:
    """One sequence's keys and values. Not for use from two threads at once."""

    @property
    def length(self) -> int:
        """Rows of the chain."""

    @property
    def open_rows(self) -> int:
        """Rows of a tree not yet chosen from."""

    def rewind(self, length: int) -> None:
        """
        Forget all but the first `length` rows, and an open tree; constant time.
        """

    def keep(self, path: _Sequence[int]) -> None:
        """
        Append a path of the open tree, by its rows from the root, and forget the rest.
        """

class Columns:
    """
    The columns of the logits that are wanted, by panels of PANEL neighbours.
    """

    def __init__(self, panels: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], head_rows: int) -> None:
        """`panels` rise; a head of `head_rows` rows has them. Raises ValueError."""

    @property
    def count(self) -> int:
        """Logits of a row."""

class Model:
    """A decoder of the Llama family."""

    def __init__(self, *, hidden: int, heads: int, kv_heads: int, head_dim: int, feed_forward: int, vocab: int, norm_epsilon: float, attention_scale: float, embedding_scale: float, gelu: bool, interleaved: bool, qkv_bias: bool, qk_norm: bool, post_norms: bool, ropes: _Sequence[tuple[_Sequence[float], float]], layers: _Sequence[tuple[int, int]], threads: int, kernels: str | None, cache_bytes: int) -> None: ...

    def set(self, name: str, type: str, rows: int, cols: int, source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', writable=False)]) -> bool:
        """
        Take a tensor by its GGUF name; False where no part of the model has that name.
        """

    def set_from_file(self, file: Gguf, name: str, coarse: bool = False) -> bool:
        """
        Take a tensor of a file; with `coarse`, a matrix of more bits per weight as Q4_0.
        """

    def finish(self) -> None:
        """Check that every tensor is there."""

    def shallow(self, layers: int) -> Model:
        """
        The first layers as a model, which shares weights and the caches' limit.
        """

    def open(self) -> Sequence:
        """A new sequence."""

    def score(self, sequences: _Sequence[Sequence], owners: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], keep: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu', writable=False)], trees: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, columns: Columns | None = None) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """
        Score rows in one pass and append them: row i is tokens[i] in sequences[owners[i]].

        It follows row parents[i], counted over those of its sequence in the open tree and this pass, or, for -1, the sequence's chain. The rows of a sequence continue its chain or, where `trees` has True for it, open a tree or join the open one. Returns the logits of the rows in `keep`, float32 [kept, vocab], or only the wanted columns.
        """

    @property
    def kernels(self) -> str: ...

    def use_threads(self, threads: int, processors: _Sequence[int] = []) -> None:
        """
        Compute with so many threads from the next pass on.

        On Linux each is kept on its own of the processors, where any are given. A shallow model keeps the threads that it has.
        """

    @property
    def threads(self) -> int: ...

    @property
    def processors(self) -> list[int]:
        """
        What the threads are kept on, the caller's first; empty where the system places them.
        """

    @property
    def layers(self) -> int: ...

    @property
    def weight_bytes(self) -> int: ...

    @property
    def pass_bytes(self) -> int:
        """Bytes of weights that a small pass reads."""

    @property
    def page_bytes(self) -> int: ...

    @property
    def cache_limit(self) -> int: ...

    @property
    def cache_used(self) -> int: ...

PAGE: int = 64

PANEL: int = 16

def read_bandwidth(threads: int, bytes: int = 1073741824, rounds: int = 5) -> float:
    """Bytes per second of a plain read of memory."""
