"""What dispatching costs: the model through its call sites, beside the same with direct calls of references.

    python tests/bench/bench_ops.py [--repeats 15] [--tokens 8192] [--chunks 512]

Both sides run the same model in one process and alternate within each repeat, in changing order, so that a
busy machine slows both. Printed are the medians in CPU milliseconds and the median of the paired ratios:
above 1 means that call sites take longer. One thread.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from hocket.model.checkpoint import load_checkpoint
from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.recall import recall_folder
from hocket_kernels.registry import OPS
from tests.bench.bench_model import DECODED, Ours


def call_sites() -> list[tuple[ModuleType, str]]:
    """Every name in a module of the model or the kernels that is an op."""
    modules = [m for n, m in sys.modules.items() if n.startswith(("hocket.model.", "hocket_kernels."))]
    return [(m, name) for m in modules for name in OPS if hasattr(m, name) and name != m.__name__]


@contextmanager
def direct_calls() -> Iterator[None]:
    """Inside, every call site calls the reference itself."""
    sites = [(m, name, getattr(m, name)) for m, name in call_sites() if callable(getattr(m, name))]
    for module, name, _ in sites:
        setattr(module, name, OPS[name].reference)
    try:
        yield
    finally:
        for module, name, op in sites:
            setattr(module, name, op)


def cpu_ms(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return 1000 * (time.process_time() - begin)


def compare(name: str, run: Callable[[], object], repeats: int, scale: float) -> float:
    """Print one row and return the median of the paired ratios."""
    found: dict[str, list[float]] = {"direct": [], "ops": []}
    run()
    for repeat in range(repeats):
        for side in ("direct", "ops") if repeat % 2 else ("ops", "direct"):
            if side == "ops":
                found[side].append(scale * cpu_ms(run))
            else:
                with direct_calls():
                    found[side].append(scale * cpu_ms(run))
    ratio = statistics.median(o / d for o, d in zip(found["ops"], found["direct"], strict=True))
    direct, ops = (statistics.median(found[side]) for side in ("direct", "ops"))
    print(f"{name:28} {direct:12.3f} {ops:12.3f} {ratio:8.3f}")
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--chunks", type=int, nargs="+", default=[512])
    options = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = load_checkpoint(recall_folder())
    ours = Ours(DeepseekV4Model(checkpoint.config, checkpoint.tensors), options.tokens)
    print(f"torch {torch.__version__}, one thread, {options.repeats} repeats, {options.tokens} tokens")
    print(f"{'what':28} {'direct, ms':>12} {'ops, ms':>12} {'ratio':>8}")
    for chunk in options.chunks:
        compare(f"prefill, chunks {chunk}", lambda c=chunk: ours.prefill(c, False), options.repeats, 1.0)
    compare("decode, one step", ours.decode, options.repeats, 1 / DECODED)


if __name__ == "__main__":
    main()
