"""Triton kernels are interpreted here; Triton decides that when it first sees them."""

import os

os.environ["TRITON_INTERPRET"] = "1"
