"""What a test of `draftproof check` found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Status: TypeAlias = Literal["pass", "fail", "undecided", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one test found: a line for a person, and its figures."""

    test: str
    status: Status
    line: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def fine(self) -> bool:
        """Whether it stands in nobody's way; a test that came to no decision does."""
        return self.status in ("pass", "skipped")
