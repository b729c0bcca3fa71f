"""The operations of a DeepSeek-V4 forward pass over grouped, paged caches: one module per op.

Each op takes tensors, ints and floats only, and has a plain-torch reference that runs on any device;
`registry` says what else may run it. An op whose name ends in an underscore writes in place to the cache
tensors that its docstring names; every other op returns fresh tensors. Symbols: T packed rows, N requests, Q
rows of a decode request, H heads, D head_dim, Hi and Di those of the indexer, n residual streams, h hidden
size, P physical rows of a cache tensor (null block included), M columns of a block table.
"""
