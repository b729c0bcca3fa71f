"""This tier needs torch_npu, and the libraries of CANN or stand-ins for them: see `make npu-env`."""

import warnings

import torch

torch.set_num_threads(1)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its sources hold invalid escapes, and it misses ASCEND_HOME_PATH
    import torch_npu  # noqa: F401 - makes the device "npu" and its ops
