"""Named models: where they come from, their licence, their checksum, and the cache they live in.

`resolve` turns what a user wrote (a path, a name of the catalogue, or `org/name[:file]` of the
Hugging Face hub) into a path on this machine, fetching and verifying where needed.
"""

from __future__ import annotations

from draftproof.catalog.disk import Progress, silent
from draftproof.catalog.entries import ENTRIES, Entry, Wheel, cache_dir, profiles_dir
from draftproof.catalog.stamp import identity
from draftproof.catalog.store import Catalog, Status, resolve

__all__ = [
    "ENTRIES",
    "Catalog",
    "Entry",
    "Progress",
    "Status",
    "Wheel",
    "cache_dir",
    "identity",
    "profiles_dir",
    "resolve",
    "silent",
]
