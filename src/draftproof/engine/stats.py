"""The account of a request, and of several together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftproof.core import Round


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts and seconds of one request.

    `rounds` are the target's passes after the prompt. `accepted` counts drafted tokens that the
    rule kept, and `acceptance_by_position[i]` the share of the i-th drafted tokens that it kept.
    `emitted` are delivered tokens: fewer than accepted + rounds where EOS or a stop string cut a
    round short. `reasons` say when speculation was switched off or on.
    """

    rounds: int
    drafted: int
    accepted: int
    emitted: int
    acceptance_by_position: tuple[float, ...]
    prefill_seconds: float
    draft_seconds: float
    score_seconds: float
    verify_seconds: float
    reasons: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        rounds: Sequence[Round],
        emitted: int,
        prefill_seconds: float,
        reasons: tuple[str, ...] = (),
    ) -> Stats:
        """Add up `rounds`."""
        longest = max((r.drafted for r in rounds), default=0)
        reached = [sum(r.drafted > i for r in rounds) for i in range(longest)]
        kept = [sum(r.accepted > i for r in rounds) for i in range(longest)]
        return cls(
            rounds=len(rounds),
            drafted=sum(r.drafted for r in rounds),
            accepted=sum(r.accepted for r in rounds),
            emitted=emitted,
            acceptance_by_position=tuple(k / n for k, n in zip(kept, reached, strict=True)),
            prefill_seconds=prefill_seconds,
            draft_seconds=sum(r.draft_seconds for r in rounds),
            score_seconds=sum(r.score_seconds for r in rounds),
            verify_seconds=sum(r.verify_seconds for r in rounds),
            reasons=reasons,
        )

    @property
    def acceptance(self) -> float | None:
        """Accepted over drafted tokens; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens per pass of the target."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def decode_seconds(self) -> float:
        """Seconds after the prompt was read."""
        return self.draft_seconds + self.score_seconds + self.verify_seconds

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens per second of decoding, the prompt's reading apart."""
        return self.emitted / self.decode_seconds if self.decode_seconds > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """All fields and derived figures, ready for `json.dumps`."""
        return {
            **asdict(self),
            "acceptance": self.acceptance,
            "tokens_per_round": self.tokens_per_round,
            "decode_seconds": self.decode_seconds,
            "tokens_per_second": self.tokens_per_second,
        }
