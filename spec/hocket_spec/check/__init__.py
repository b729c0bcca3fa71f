"""Tools over the reference model: exploration, lock-step with an implementation, liveness, instances."""
