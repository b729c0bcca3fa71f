"""Which tokens of a decode row with drafts are emitted.

Line i of a row has the target's distribution p_i after the drafts before it. The token at that position is
chosen from p_i exactly as it would be without drafts: the best one, or the one that the number of (seed,
position) draws. A draft counts if it is that token; the first that is not is replaced by it, and ends the
row.

For sampled rows this is rejection sampling of a draft that its layer is certain of: the chosen token has
distribution p_i, so the draft d is accepted with probability p_i(d), the most that any method reaches that
keeps the target distribution, and a rejected one is replaced by a draw from p_i without d. Taking both
decisions from one number per position is what makes the text independent of whether there was a draft at all,
and that depends on schedule, memory and neighbours.
"""

from __future__ import annotations

from collections.abc import Container, Sequence


def num_emitted(drafts: Sequence[int], chosen: Sequence[int], broken: Container[int] = ()) -> int:
    """How many of `chosen` are emitted: those up to the first draft that is not what the target chose.

    drafts: k ids. chosen: the target's k + 1 choices, each after the drafts before it. broken: indices of
    lines whose logits allow no choice. At least 1; a broken line is left to a later row, where it is the
    first.
    """
    count = 1
    while count < len(chosen) and drafts[count - 1] == chosen[count - 1] and count not in broken:
        count += 1
    return count
