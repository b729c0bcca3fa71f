"""Seeded faults: each is put in, and the check that claims to see it must see it."""

from hocket_proofs.refuted import admission, blocks, model, packs, policy, rotation, runner, tokens
from hocket_proofs.refuted.fault import Fault

FAULTS: tuple[Fault, ...] = (
    *rotation.FAULTS, *admission.FAULTS, *blocks.FAULTS, *tokens.FAULTS, *policy.FAULTS, *packs.FAULTS,
    *runner.FAULTS, *model.FAULTS,
)  # fmt: skip
