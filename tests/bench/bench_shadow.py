"""What the checks against the specification cost: `hocket trace check`, and shadow mode beside an engine.

    python tests/bench/bench_shadow.py [--repeats 5] [--tokens 8192] [--seats 1 2 8 32]

Engines with a simulated runner, as many requests at a time as `--seats` says, `--tokens` tokens of outputs in
all. "trace check" is the speed of the check of the recorded run, in records (lines) and in rows (each
twice: dispatched and processed) per CPU second. "shadow" is the engine's CPU time with the
shadow, over that without it; the two alternate within each repeat. A simulated step costs next to nothing, so
beside a model the ratio is close to 1; "ms" is what a step pays for the shadow. Printed are medians.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hocket import KVCacheConfig, KVGroupSpec, Request, SamplingParams, SchedulerConfig
from hocket.engine.engine import Engine
from hocket.obs.trace import TraceWriter
from hocket.runner.simulated import SimulatedRunner
from hocket_proofs.trace_check import check

VOCAB, MODEL_LEN, OUTPUTS = 1000, 2048, 128
PROMPTS = (96, 700, 300, 1500)


def run(seats: int, tokens: int, shadow: bool, trace: TraceWriter | None = None) -> tuple[float, int]:
    """CPU seconds of an engine from its first request to its last, and its dispatches."""
    cache = KVCacheConfig(
        groups=(
            KVGroupSpec("full", 128, num_blocks=14 * seats),
            KVGroupSpec("near", 64, num_blocks=12 * seats, window=128),
        )
    )
    config = SchedulerConfig(max_num_seqs=seats, prefill_chunk_size=512, max_model_len=MODEL_LEN)
    runner = SimulatedRunner(
        cache, max_num_seqs=seats, max_model_len=MODEL_LEN, vocab_size=VOCAB, check_cache=False
    )
    with Engine(config, cache, runner, trace=trace, shadow_check=shadow) as engine:
        coming = [
            Request(f"r{i}", [i % VOCAB] * PROMPTS[i % 4], SamplingParams(max_tokens=OUTPUTS))
            for i in range(max(seats, tokens // OUTPUTS))
        ]
        begin = time.process_time()
        while coming or engine.has_unfinished_requests():
            if coming and not engine.scheduler.num_waiting:
                engine.add_request(coming.pop())
            engine.step()
        seconds = time.process_time() - begin
    return seconds, engine.stats.prefill_steps + engine.stats.decode_steps


def checked(seats: int, tokens: int, repeats: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.ndjson"
        with TraceWriter(path) as trace:
            run(seats, tokens, False, trace)
        times = []
        for _ in range(repeats):
            begin = time.process_time()
            found = check(path)
            times.append(time.process_time() - begin)
    seconds = statistics.median(times)
    return f"{found.records / seconds:>11,.0f} {2 * found.rows / seconds:>11,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--seats", type=int, nargs="+", default=[1, 2, 8, 32])
    options = parser.parse_args()
    print(
        f"{'seats':>5} {'records/s':>11} {'rows/s':>11} {'without':>10} {'with':>10} {'ratio':>7} {'ms':>7}"
    )
    for seats in options.seats:
        speed = checked(seats, options.tokens, options.repeats)
        pairs = [
            (run(seats, options.tokens, False), run(seats, options.tokens, True))
            for _ in range(options.repeats)
        ]
        plain, shadowed = (statistics.median(pair[k][0] for pair in pairs) for k in (0, 1))
        step = 1000 * (shadowed - plain) / pairs[0][0][1]
        print(f"{seats:>5} {speed} {plain:>8.2f} s {shadowed:>8.2f} s {shadowed / plain:>6.1f}x {step:>7.2f}")


if __name__ == "__main__":
    main()
