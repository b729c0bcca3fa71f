"""The drafter's own memory: by slot and epoch."""

import numpy as np
import pytest
import torch

from hocket.model.dispatch import DecodeDispatch
from hocket.runner.api import RunnerError
from hocket.runner.drafts import SlotRows
from tests.e2e.drafting import Recorder, engine, guide, oracle, plain, prompt, request, whole


def rows(slots, epochs, lengths):
    return SlotRows(np.array(slots), torch.tensor(slots), epochs, lengths)


def dispatch(lengths):
    count = len(lengths)
    return DecodeDispatch(
        torch.zeros(count, 1, dtype=torch.int64),
        torch.full((count,), 5),
        torch.tensor(lengths),
        {"mtp_swa": torch.zeros(count, 8, dtype=torch.int32)},
    )


def test_a_slots_earlier_owner_leaves_no_drafts():
    with engine(1, 2) as built:
        built.add_request(request("a", prompt(9), max_tokens=4))
        built.step()
        drafter = built.runner.drafter
        (epoch,) = (int(built.runner.slots.epochs[0]),)
        assert drafter.epochs[0] == epoch
        assert drafter.propose(rows([0], (epoch,), [2]), dispatch([2])).shape == (1, 1)
        with pytest.raises(RunnerError, match=f"slot 0: drafts of epoch {epoch} for a row of {epoch + 1}"):
            drafter.propose(rows([0], (epoch + 1,), [2]), dispatch([2]))


def test_a_row_without_drafts_needs_none():
    with engine(1, 2) as built:
        drafter = built.runner.drafter
        drafter.epochs[1] = 7
        assert drafter.propose(rows([0, 1], (3, 7), [1, 2]), dispatch([1, 2])).shape == (2, 1)


def test_after_rejections_the_next_drafts_start_from_what_was_confirmed():
    """One row in two is wrong at its first draft: the drafts of the layer itself stay the oracle's."""
    item = request("r", prompt(70, 8), max_tokens=30)
    text = whole(item)
    with engine(2, 3) as built:
        guide(built, {"r": text}, lambda _, position: position % 3 != 0)
        own = Recorder(built)
        propose = built.runner.drafter.propose
        del propose
        built.add_request(item)
        found = {}
        while built.has_unfinished_requests():
            found.update({u.request_id: u.result for u in built.step() if u.finished})
    assert found["r"].token_ids == plain(item).token_ids
    reference = oracle().logits(torch.tensor(text))
    mine = own.table("r", 0, len(text) - 1)
    assert float((mine - reference).abs().max()) <= 2e-4


def test_a_row_whose_draft_lines_are_broken_goes_on_alone():
    """Logits without a finite maximum after a draft: the row ends before them, the request does not fail."""
    item = request("r", prompt(20, 3), max_tokens=8)
    text = whole(item)
    with engine(1, 3) as built:
        guide(built, {"r": text}, lambda *_: True)
        real, model = built.runner.model.decode, built.runner.model

        class Spoilt:
            def __getattr__(self, name):
                return getattr(model, name)

            def decode(self, dispatch, cache, streams=False):
                out = real(dispatch, cache, streams)
                out.logits[:, 1:] = float("nan")
                return out

        built.runner.model = Spoilt()
        built.add_request(item)
        found = {}
        while built.has_unfinished_requests():
            found.update({u.request_id: u.result for u in built.step() if u.finished})
    assert found["r"].finish_reason == "length"
    assert found["r"].token_ids == text[20:]
    assert found["r"].metrics.num_accepted_tokens == 0
