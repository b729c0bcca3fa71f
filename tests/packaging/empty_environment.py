"""Run by an interpreter that has hocket and nothing else: a long prompt beside a live decode request.

Prints one JSON object: chunk starts, the phase of each step, and what of interest is importable or loaded.
"""

import importlib.util
import json
import sys

import hocket
from hocket import (
    KVCacheConfig,
    KVGroupSpec,
    ModelRunnerOutput,
    Phase,
    Request,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
)

scheduler = Scheduler(
    SchedulerConfig(prefill_chunk_size=2048, max_model_len=16384, async_depth=1),
    KVCacheConfig(groups=(KVGroupSpec("full", 128, 1024), KVGroupSpec("window", 64, 1024, window=128))),
)
scheduler.add_request(Request("short", range(1, 17), SamplingParams(max_tokens=40)))
scheduler.add_request(Request("long", range(1, 8193), SamplingParams(max_tokens=2)))

chunk_starts = []
phases = []
while scheduler.has_unfinished_requests():
    output = scheduler.schedule()
    phases.append("P" if output.phase is Phase.PREFILL else "D")
    if output.phase is Phase.PREFILL:
        chunk_starts += [
            start
            for request_id, start in zip(output.request_ids, output.num_computed_tokens, strict=True)
            if request_id == "long"
        ]
    tokens = tuple((7,) if samples else () for samples in output.samples)
    scheduler.update_from_output(output, ModelRunnerOutput(step_id=output.step_id, sampled_token_ids=tokens))

report = {
    "version": hocket.__version__,
    "home": hocket.__file__,
    "chunk_starts": chunk_starts,
    "phases": "".join(phases),
    "loaded": sorted({name.partition(".")[0] for name in sys.modules}),
    "importable": [
        name
        for name in (
            "impl",
            "spec",
            "kernels",
            "proofs",
            "tests",
            "hocket_spec",
            "hocket_kernels",
            "hocket_proofs",
            "numpy",
        )
        if importlib.util.find_spec(name) is not None
    ],
}
print(json.dumps(report))
