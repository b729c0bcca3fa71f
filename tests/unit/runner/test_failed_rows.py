"""What the model runner says of a row whose logits are broken."""

from tests.e2e.world import drain, engine, prompt, request


def test_a_failed_row_has_neither_tokens_nor_logprobs():
    results = []
    with engine(1) as built:
        execute = built.runner.execute

        def watched(*what):
            results.append(execute(*what))
            return results[-1]

        built.runner.execute = watched
        for name, salt in (("bad", 1), ("good", 2)):
            built.add_request(request(name, prompt(30, salt), max_tokens=9, logprobs=2))
        for _ in range(4):
            built.step()
        block = built.scheduler.block_table("bad", "swa")[-1]
        built.runner.cache.tensors["swa"][:, block * 8 : block * 8 + 8] = float("nan")
        found = drain(built)
    failed = [result for result in results if result is not None and result.failures]
    assert [len(result.failures) for result in failed] == [1]
    (row,) = failed[0].failures
    assert failed[0].sampled_token_ids[row] == ()
    assert failed[0].logprobs[row] is None
    assert len(failed[0].logprobs[1 - row]) == 1
    assert len(found["bad"].logprobs) == len(found["bad"].token_ids)
