"""The logical processors that this process may use, and the cores that they are of."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from draftproof.ports import Threads

SYSTEM = Path("/sys/devices/system/cpu")  # where Linux describes processors


def allowed() -> tuple[int, ...]:
    """The logical processors that this process may use, rising."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def one_per_core() -> tuple[int, ...]:
    """The first logical processor of each core, among those allowed; none where nobody says."""
    first: dict[str, int] = {}
    try:
        for processor in allowed():
            siblings = SYSTEM / f"cpu{processor}" / "topology" / "thread_siblings_list"
            first.setdefault(siblings.read_text(), processor)
    except OSError:
        return ()
    return tuple(first.values())


def cores() -> int:
    """Cores that this process may use, hyper-threads not counted twice."""
    count = len(allowed())
    return len(one_per_core()) or max(1, min(count, psutil.cpu_count(logical=False) or count))


def choices() -> tuple[Threads, ...]:
    """What to compute on: a thread for each core, which is usual, or for each logical processor.

    On Linux both of them pinned, too.
    """
    counts = dict.fromkeys((cores(), len(allowed())))
    kinds = (False, True) if one_per_core() else (False,)
    return tuple(Threads(count, pinned) for pinned in kinds for count in counts)


def places(threads: Threads) -> list[int]:
    """What each thread is pinned to, the caller's first; empty where the system places them."""
    if not threads.pinned:
        return []
    first = one_per_core()
    found = first if threads.count <= len(first) else allowed()
    return list(found[: threads.count]) if first and threads.count <= len(found) else []
