"""Make refmoe/families/data/minilm_layer2_moe.safetensors: one expert out of a real feed-forward block.

    python tools/minilm_layer2_moe.py WEIGHTS.safetensors refmoe/families/data/minilm_layer2_moe.safetensors

WEIGHTS holds `layer2.ffn_up.weight` [1536, 384] and `layer2.ffn_down.weight` [384, 1536] of
sentence-transformers/all-MiniLM-L6-v2 in BF16. That network has no gate, so one is made of its up projection: the first
768 rows are the gate, the last 768 rows are up. The down projection keeps its first 768 columns. Rows of gate and up
alternate, as in gpt-oss. Both matrices are quantized to MXFP4 with the FLOOR scales of OCP MX v1.0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from refmoe.reference import quantize_mxfp4

INTERMEDIATE = 768

ORIGIN = (
    "feed-forward block of layer 2 of sentence-transformers/all-MiniLM-L6-v2 as an expert: gate and up are the first "
    "and the last 768 rows of its up projection, row by row in turn, down the first 768 columns of its down "
    "projection; MXFP4, FLOOR scales; made by tools/minilm_layer2_moe.py"
)


def main(source: Path, target: Path) -> None:
    """Quantize the two matrices of `source` and write `target`."""
    weights = load_file(source)
    up, down = weights["layer2.ffn_up.weight"], weights["layer2.ffn_down.weight"]
    gate_up = np.stack([up[:INTERMEDIATE], up[INTERMEDIATE:]], axis=1).reshape(2 * INTERMEDIATE, up.shape[1])
    tensors: dict[str, np.ndarray] = {}
    for name, matrix in (("gate_up", gate_up), ("down", down[:, :INTERMEDIATE])):
        quantized = quantize_mxfp4(np.ascontiguousarray(matrix), mode="floor")
        tensors |= {f"{name}.codes": quantized.codes, f"{name}.scales": quantized.scales}
    save_file(tensors, target, metadata={"origin": ORIGIN, "license": "Apache-2.0"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
