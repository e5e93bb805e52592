"""Every error that a user can cause, as one tree.

    DraftproofError
    ├── InvalidInput              a value that was passed in
    │   ├── InvalidSetting        a sampling setting, limit or option
    │   ├── EmptyPrompt
    │   └── PromptTooLong
    ├── ModelError                a model, its file or its tokenizer
    │   ├── ModelNotFound
    │   ├── ModelCorrupt          truncated, or the wrong checksum
    │   ├── UnsupportedModel      an architecture or cache that cannot be used
    │   ├── TokenizerMismatch     target and draft do not share a vocabulary
    │   └── BadLogits             NaN or infinity came out of a pass
    ├── ResourceError             this machine lacks something
    │   ├── OutOfDisk
    │   ├── OutOfMemory
    │   └── FetchFailed           no source could deliver a file
    └── MissingExtra              an optional dependency is not installed

Each says *what* was wrong, *why* it matters and the *remedy*.
"""

from __future__ import annotations


class DraftproofError(Exception):
    """Root of the tree.

    Args:
        what: What was wrong, naming the value.
        why: Why that matters.
        remedy: What to do about it.
    """

    def __init__(self, what: str, *, why: str, remedy: str) -> None:
        super().__init__(what, why, remedy)
        self.what = what
        self.why = why
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n  why: {self.why}\n  remedy: {self.remedy}"


class InvalidInput(DraftproofError):
    """A value that was passed in cannot be used."""


class InvalidSetting(InvalidInput):
    """A sampling setting, a limit or an option is out of range or unknown."""


class EmptyPrompt(InvalidInput):
    """The prompt holds no tokens."""


class PromptTooLong(InvalidInput):
    """The prompt does not fit in the context of the target or of the draft."""


class ModelError(DraftproofError):
    """Something about a model, its file or its tokenizer."""


class ModelNotFound(ModelError):
    """No such path, catalogue name or hub repository."""


class ModelCorrupt(ModelError):
    """A model file is truncated or has the wrong checksum."""


class UnsupportedModel(ModelError):
    """An architecture, or a cache that cannot be rewound."""


class TokenizerMismatch(ModelError):
    """Target and draft give different strings to the same token ids."""


class BadLogits(ModelError):
    """A model's pass returned NaN or infinity."""


class ResourceError(DraftproofError):
    """This machine lacks something that was needed."""


class OutOfDisk(ResourceError):
    """There is no room for a file."""


class OutOfMemory(ResourceError):
    """There is no memory for weights or caches."""


class FetchFailed(ResourceError):
    """No source could deliver a file."""


class MissingExtra(DraftproofError):
    """An optional dependency is not installed."""
