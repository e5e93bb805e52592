"""One mode of OpenVINO GenAI, run by the interpreter of the environment that has it.

`openvino.py` starts it and speaks with it in JSON lines: first the settings, answered with
`{"ready": seconds, ...}`; then one request a line, answered with ids and seconds. What goes wrong
is answered as `{"error": text}`. Nothing of draftproof is imported.
"""

from __future__ import annotations

import json
import shutil
import sys
from time import perf_counter
from typing import Any


def load(settings: dict[str, Any], notes: dict[str, Any]) -> tuple[Any, Any]:
    """The pipeline and the settings of its generations, or an exception of OpenVINO's."""
    import openvino_genai as genai

    threads = {"INFERENCE_NUM_THREADS": settings["threads"]}
    more = dict(threads)
    config = genai.GenerationConfig()
    config.do_sample = False
    if settings["mode"] == "lookup":
        more["prompt_lookup"] = True
        config.num_assistant_tokens = settings["lookup_tokens"]
        config.max_ngram_size = settings["ngram"]
    if settings["mode"] == "draft":
        more["draft_model"] = draft_model(genai, settings, threads, notes)
        config.num_assistant_tokens = settings["draft_length"]
    if settings["eos"]:
        config.eos_token_id = settings["eos"][0]
        config.stop_token_ids = set(settings["eos"])
    return genai.LLMPipeline(settings["target"], "CPU", **more), config


def draft_model(
    genai: Any, settings: dict[str, Any], threads: dict[str, Any], notes: dict[str, Any]
) -> Any:
    """The draft from its GGUF file; where that is refused, from what OpenVINO saves of the file.

    OpenVINO saves a model beside the file it loads, so that it is given a copy.
    """
    try:
        return genai.draft_model(settings["draft"], "CPU", **threads)
    except RuntimeError as error:
        notes["gguf_draft_refused"] = str(error)
    copy = shutil.copy(settings["draft"], settings["scratch"])
    genai.LLMPipeline(copy, "CPU", enable_save_ov_model=True)
    return genai.draft_model(settings["scratch"], "CPU", **threads)


def complete(pipeline: Any, config: Any, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    """Continue a prompt; the seconds are those of the whole call and until the first token."""
    import numpy as np
    import openvino

    config.max_new_tokens = max_tokens
    started = perf_counter()
    ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
    result = pipeline.generate(ids, config)
    seconds = perf_counter() - started
    first = result.perf_metrics.get_ttft().mean / 1e3
    return {"ids": [int(token) for token in result.tokens[0]], "seconds": seconds, "first": first}


def main() -> None:
    """Answer line by line until there is no more."""
    answers, sys.stdout = sys.stdout, sys.stderr  # OpenVINO prints, too
    made = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if made is None:
                started = perf_counter()
                notes: dict[str, Any] = {}
                made = load(asked, notes)
                answer = {"ready": perf_counter() - started, **notes}
            else:
                answer = complete(*made, asked["prompt"], asked["max_tokens"])
        except Exception as error:  # whatever it is, it is the finding
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
        if made is None:
            return


if __name__ == "__main__":
    main()
