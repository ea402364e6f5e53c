from __future__ import annotations

from hypothesis import settings

# The same examples on every run: a red test is reproduced by running it again.
settings.register_profile("refmoe", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("refmoe")
