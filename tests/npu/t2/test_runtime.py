"""The fake CANN runtime under torch_npu: memory, copies, streams and events behave as a device's."""

import torch


def test_the_accelerator_is_the_fake_one() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("npu")
