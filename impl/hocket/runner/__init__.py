"""The runner: a `SchedulerOutput` in, sampled tokens out. Slots, packed inputs, sampling, a simulated twin."""
