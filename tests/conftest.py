"""Settings that all tests share: the Hypothesis profiles.

* `ci` (the default): the same examples in every run, and no clock, so that a red run is red again.
* `soak`: fresh random examples, a hundred times as many; a failure prints the line that reproduces it.

Choose with HYPOTHESIS_PROFILE=soak.
"""

import os

from hypothesis import HealthCheck, settings

# The health check `too_slow` reads the clock: on a busy machine it fails sound tests.
_COMMON = settings(
    deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)

settings.register_profile("ci", _COMMON, derandomize=True)
settings.register_profile("soak", _COMMON, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
