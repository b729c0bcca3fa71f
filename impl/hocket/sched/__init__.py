"""The scheduler: `kernel` decides, `planner` and `preemption` ask it, `scheduler` carries out.

No clock, no randomness, no I/O, no torch. Entry point: `hocket.sched.scheduler.Scheduler`.
"""
