"""Steps of the model runner that are launched before older ones are settled, as on a device that works on its
own: the host knows only bounds of where a row stands.
"""

import pytest

from hocket.engine.executor import DeviceExecutor
from hocket.runner.api import RunnerError
from hocket.runner.model_runner import ModelRunner
from tests.e2e import world
from tests.e2e.drafting import engine, guide, plain, prompt, request, whole
from tests.unit.runner.test_steps import length


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_is_drawn_for_the_position_that_it_turns_out_to_have(depth, temperature, monkeypatch):
    """Some drafts are right: how far a row comes is not known when the next one is launched."""
    monkeypatch.setattr(ModelRunner, "asynchronous", True)
    items = [
        request(f"r{salt}", prompt(9 + salt, salt), max_tokens=18, temperature=temperature, seed=salt)
        for salt in (1, 2)
    ]
    texts = {item.request_id: whole(item) for item in items}
    spreads, found = set(), {}
    with engine(depth, 2) as built:
        assert isinstance(built._executor, DeviceExecutor)
        guide(built, texts, lambda _, position: position % 4 != 0)
        slots, launch = built.runner.slots, built.runner.launch

        def watched(*what):
            spreads.update((slots.at_most - slots.computed).tolist())
            return launch(*what)

        built.runner.launch = watched
        for item in items:
            built.add_request(item)
        while built.has_unfinished_requests():
            found.update({u.request_id: u.result for u in built.step() if u.finished})
    assert max(spreads) >= 2, "rows were launched that may stand at several positions"
    for item in items:
        assert found[item.request_id].token_ids == plain(item).token_ids
        assert found[item.request_id].metrics.num_accepted_tokens > 0


def test_drafts_without_layers_that_make_them_are_refused_before_anything_changes():
    with world.engine(1) as built:
        built.add_request(world.request("a", world.prompt(9), max_tokens=5))
        built.step()
        output, runner = built.scheduler.schedule(), built.runner
        drafting = length(2)(output)
        before = [values.tobytes() for values in (runner.slots.computed, runner.slots.at_most)]
        with pytest.raises(RunnerError, match=r"a decode row has drafts, but .* no draft layers"):
            runner.launch(drafting)
        assert [values.tobytes() for values in (runner.slots.computed, runner.slots.at_most)] == before
        result = runner.execute(output)
        assert len(result.sampled_token_ids[0]) == 1
