"""Covering tables: few rows in which every two values of different factors meet at least once."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any


def pairwise(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Greedy and deterministic: each row is the combination that covers most of the pairs still open."""
    names = list(factors)
    everything = [dict(zip(names, values, strict=True)) for values in itertools.product(*factors.values())]
    open_pairs = {pair for row in everything for pair in _pairs(row)}
    rows = []
    while open_pairs:
        best = max(everything, key=lambda row: len(open_pairs & _pairs(row)))
        open_pairs -= _pairs(best)
        rows.append(best)
    return rows


def render(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table as text, one line a row, factor names first."""
    names = list(rows[0])
    widths = [max(len(n), *(len(str(row[n])) for row in rows)) for n in names]
    lines = [names, *([str(row[n]) for n in names] for row in rows)]
    return "\n".join(
        "  ".join(v.ljust(w) for v, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _pairs(row: Mapping[str, Any]) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
    return set(itertools.combinations(row.items(), 2))
