"""L1-L7 on an explored graph: exact longest waits, and cycles in which a request makes no progress."""

from collections.abc import Callable, Iterable
from math import inf

from hocket_spec.check.explore import Event, Graph
from hocket_spec.state import DECODE, PREFILL

Edges = list[list[tuple[int, int]]]


def components(edges: Edges) -> tuple[list[int], int]:
    """Strongly connected components by Tarjan, numbered in reverse topological order."""
    n = len(edges)
    index, low, comp = [0] * n, [0] * n, [-1] * n
    stack: list[int] = []
    visited, number = 0, 0
    for root in range(n):
        if index[root]:
            continue
        work = [(root, 0)]
        while work:
            u, k = work.pop()
            if not k:
                visited += 1
                index[u] = low[u] = visited
                stack.append(u)
            if k < len(edges[u]):
                work.append((u, k + 1))
                v = edges[u][k][0]
                if not index[v]:
                    work.append((v, 0))
                elif comp[v] < 0:
                    low[u] = min(low[u], index[v])
                continue
            if work:
                parent = work[-1][0]
                low[parent] = min(low[parent], low[u])
            if low[u] == index[u]:
                while comp[u] < 0:
                    comp[stack.pop()] = number
                number += 1
    return comp, number


def longest(g: Graph, weight: Callable[[Event], int]) -> float:
    """Greatest total weight of a path of edges with weight >= 0 (negative = the edge ends the wait); inf if
    unbounded.
    """
    n = len(g.edges)
    edges = [[(v, w) for v, ev in es if v < n and (w := weight(ev)) >= 0] for es in g.edges]
    comp, number = components(edges)
    if any(w and comp[u] == comp[v] for u, es in enumerate(edges) for v, w in es):
        return inf
    best = [0] * number
    order: list[list[int]] = [[] for _ in range(number)]
    for u in range(n):
        order[comp[u]].append(u)
    for k, members in enumerate(order):
        leaving = [best[comp[v]] + w for u in members for v, w in edges[u] if comp[v] != k]
        best[k] = max(leaving, default=0)
    return max(best, default=0)


def l1_passed_over(g: Graph, phase: int) -> float:
    """Calls between two dispatches of the phase at which it was serviceable and the other one ran."""
    return longest(g, lambda e: -1 if e.phase == phase else int(e.serviceable[phase] and e.phase != 0))


def l3_row_wait(g: Graph, phase: int) -> float:
    """Dispatches of the phase that pass over the watched request while it is ready for it, between two rows
    of it.
    """
    return longest(g, lambda e: int(e.ready and e.phase == phase) if e.watched and not e.row else -1)


def l4_head_wait(g: Graph) -> float:
    """Consecutive calls at which the watched request is a waiting head that fits, and is not admitted."""
    return longest(g, lambda e: -1 if not e.watched or e.row or (e.phase and not e.fits) else int(e.fits))


def l7_senior_wait(g: Graph) -> float:
    """Calls, empty ones included, at which the watched request is the most senior ready one and gets no
    row.
    """
    return longest(g, lambda e: e.calls if e.watched and e.top and not e.row else -1)


def end_to_end(g: Graph) -> float:
    """Calls from arrival to the end of the watched request, under whatever traffic."""
    quiet = ("schedule", "complete", "add")
    return longest(g, lambda e: e.calls if e.watched and e.kind in quiet else -1)


def l5_fair_cycle(g: Graph) -> list[int]:
    """Nodes of a cycle with a completion in it through which the watched request stays unfinished; [] if
    none.
    """
    n = len(g.edges)
    quiet = ("schedule", "complete", "add")
    edges = [
        [(v, int(e.kind == "complete")) for v, e in es if v < n and e.watched and e.kind in quiet]
        for es in g.edges
    ]
    comp, _ = components(edges)
    for u, es in enumerate(edges):
        for v, completes in es:
            if completes and comp[u] == comp[v]:
                return [u, v]
    return []


def waits(g: Graph) -> dict[str, float]:
    """All measures by name."""
    return {
        "L1 prefill": l1_passed_over(g, PREFILL), "L1 decode": l1_passed_over(g, DECODE),
        "L3 prefill": l3_row_wait(g, PREFILL), "L3 decode": l3_row_wait(g, DECODE),
        "L4": l4_head_wait(g), "L7": l7_senior_wait(g), "end to end": end_to_end(g),
    }  # fmt: skip


def over(found: Iterable[tuple[str, float, float]]) -> list[str]:
    """The measures that exceed their bounds."""
    return [f"{name}: {value} > {bound}" for name, value, bound in found if value > bound]
