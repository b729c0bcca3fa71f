"""Grouped KV cache bookkeeping.

Pools of block ids and the block tables of requests. It moves ids; it decides nothing.
"""
