"""Contracts that CrossHair confirms over all paths: a second prover, another method, the same functions."""
