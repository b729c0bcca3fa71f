"""The runner: from a `SchedulerOutput` to sampled tokens. Slots, packed inputs, sampling, simulation."""
