"""The Triton kernels in Triton's interpreter, against the references."""

import pytest
import torch

from hocket_kernels.registry import OPS
from tests.npu.checks import check_computes, taken
from tests.npu.samples import Sample, ints, noise, samples, table

torch.set_num_threads(1)

# Sizes that leave the last tile of a kernel partly empty, and fill more than one. Float32: the interpreter's
# cast to bfloat16 truncates.
SLOTS = torch.randperm(59, generator=torch.Generator().manual_seed(0))[:40]
LARGER = [
    Sample("slot_mapping", "two tiles", (
        table(3, 5), ints(0, 2, 1).view(3, 1), torch.arange(-7, 93).view(1, 100), 20, 4)),
    Sample("token_gather", "two tiles", (
        torch.arange(300), torch.arange(300) % 7 - 1, torch.arange(1000, 1006))),
    Sample("partial_rotary", "two tiles", (noise(13, 3, 22), noise(13, 5).cos(), noise(13, 5).sin(), True)),
    Sample("grouped_kv_write_", "two tiles", (
        noise(60, 130), SLOTS, noise(40, 130)), 0),
]  # fmt: skip
CASES = [s for s in [*samples(), *LARGER] if taken("triton", s) and torch.bfloat16 not in {
    getattr(a, "dtype", None) for a in s.args}]  # fmt: skip


@pytest.mark.parametrize("sample", CASES, ids=lambda s: s.id)
def test_a_kernel_computes_what_the_reference_does(sample: Sample) -> None:
    (implementation,) = taken("triton", sample)
    check_computes(OPS[sample.op], implementation, sample)


def test_a_cache_in_bfloat16_is_written_to_its_last_bit() -> None:
    """One unit in the last place: the interpreter truncates where the device rounds."""
    (sample,) = (s for s in samples() if s.id == "grouped_kv_write_-bf16 cache")
    (implementation,) = taken("triton", sample)
    found, expected = sample.fresh(), sample.fresh()
    implementation.run(*found)
    OPS[sample.op].reference(*expected)
    apart = (found[0][1:].view(torch.int16).int() - expected[0][1:].view(torch.int16).int()).abs()
    assert int(apart.max()) <= 1


def test_every_kernel_is_run() -> None:
    with_kernel = {o.name for o in OPS.values() if any(i.source == "triton" for i in o.implementations)}
    assert {s.op for s in CASES} == with_kernel
