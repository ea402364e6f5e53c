from __future__ import annotations

import pickle

import numpy as np

from refmoe.errors import ArgumentError, describe


def test_argument_error_survives_pickling() -> None:
    error = ArgumentError("x", describe(np.zeros((2, 3), np.float32)), "bfloat16")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == "x: found float32 [2, 3]; needed bfloat16"
    assert (copy.argument, copy.found, copy.needed) == (error.argument, error.found, error.needed)
