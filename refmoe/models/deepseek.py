"""DeepSeek-V3 and R1 in safetensors files: as DeepSeek stores them in FP8, or as ModelOpt does in NVFP4."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.formats import NVFP4
from refmoe.models.block_scaled import BlockScaledWeight
from refmoe.models.checkpoint import Checkpoint, check_counts, check_layer
from refmoe.models.config import DeepSeekConfig
from refmoe.models.modelopt import NVFP4Linear, checked_nvfp4, quantizes
from refmoe.models.schema import SCALE_BLOCK, TensorSpec, deepseek_nvfp4_tensors, deepseek_tensors
from refmoe.models.tensor_file import CheckpointError
from refmoe.models.tensor_set import TensorSet
from refmoe.reference.block_fp8 import BlockFP8Tensor
from refmoe.reference.deepseek.layer import WEIGHTS, BlockFP8Expert, DeepSeekMoELayer
from refmoe.reference.deepseek.nvfp4_layer import BF16Expert, DeepSeekNVFP4Layer, NVFP4Expert
from refmoe.reference.nvfp4 import NVFP4Tensor

_TILE = "128x128"

Array = NDArray[Any]
W = TypeVar("W")
E = TypeVar("E")


@dataclass(frozen=True, eq=False)
class DeepSeekExpert(Generic[W]):
    """A feed-forward network: down(silu(gate x) * up x)."""

    gate: W
    up: W
    down: W


class Experts(Sequence[DeepSeekExpert[W]]):
    """The experts of a layer. One is looked up when it is asked for; of the others nothing is read."""

    def __init__(self, count: int, expert: Callable[[int], DeepSeekExpert[W]]) -> None:
        self._numbers, self._expert = range(count), expert

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> DeepSeekExpert[W]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[DeepSeekExpert[W], ...]: ...
    def __getitem__(self, index: int | slice) -> DeepSeekExpert[W] | tuple[DeepSeekExpert[W], ...]:
        if isinstance(index, slice):
            return tuple(self._expert(number) for number in self._numbers[index])
        return self._expert(self._numbers[index])


@dataclass(frozen=True, eq=False)
class DeepSeekLayer(Generic[W]):
    """The mixture of experts of a DeepSeek-V3 layer.

    Attributes:
        experts: the routed experts.
        shared: the expert that every token goes to.
        router_weight: BF16 [E, H].
        correction_bias: float32 [E] (exact if the file has BF16), added to the sigmoids for the choice alone.
        config: top-k, groups and the factor on the weights.
    """

    experts: Experts[W]
    shared: DeepSeekExpert[W]
    router_weight: Array
    correction_bias: Array
    config: DeepSeekConfig


class _DeepSeek(Checkpoint, ABC, Generic[W]):
    """What both ways to store it have in common.

    Attributes:
        path: the folder.
        config: its sizes.
        layers: the numbers of all its layers.
        moe_layers: those that have experts.
    """

    def __init__(self, folder: Path, config: DeepSeekConfig, needed: Callable[[], Mapping[str, TensorSpec]]) -> None:
        tensors = TensorSet(folder)
        counts = {"num_hidden_layers": config.num_hidden_layers, "n_routed_experts": config.n_routed_experts}
        check_counts(folder, tensors, **counts)
        super().__init__(folder, tensors, needed())
        self.config = config
        self.layers = range(config.num_hidden_layers)
        self.moe_layers = range(config.first_k_dense_replace, config.num_hidden_layers)

    @abstractmethod
    def weight(self, name: str) -> W:
        """The weight `name`.weight with its scales, as views of the file.

        Raises:
            CheckpointError: there is no such weight, or its scales are missing or damaged.
        """

    def moe_layer(self, layer: int) -> DeepSeekLayer[W]:
        """Router and experts of a layer, as views of the file. A routed expert is looked up when it is asked for.

        Raises:
            ArgumentError: there is no such layer, or it has no experts.
        """
        check_layer(layer, self.moe_layers)
        prefix = f"model.layers.{layer}.mlp."
        return DeepSeekLayer(
            experts=Experts(self.config.n_routed_experts, lambda expert: self._expert(f"{prefix}experts.{expert}.")),
            shared=self._expert(f"{prefix}shared_experts."),
            router_weight=self.tensor(f"{prefix}gate.weight"),
            correction_bias=self.tensor(f"{prefix}gate.e_score_correction_bias").astype(np.float32, copy=False),
            config=self.config,
        )

    def _rank(self, first_expert: int, experts: int | None) -> tuple[int, int]:
        """The first of a rank's experts and how many it has; None for all from the first on."""
        there = self.config.n_routed_experts
        count = there - first_expert if experts is None else experts
        if first_expert < 0 or count < 1 or first_expert + count > there:
            asked = f"{count} experts from {first_expert} on"
            raise ArgumentError("first_expert", asked, f"some of the {there} of the layer")
        return first_expert, count

    def _sizes_and_router(self, found: DeepSeekLayer[W]) -> dict[str, Any]:
        """What the layers that paths take have in common."""
        config = self.config
        return {
            "hidden": config.hidden_size,
            "intermediate": config.moe_intermediate_size,
            "top_k": config.num_experts_per_tok,
            "router_weight": found.router_weight,
            "correction_bias": found.correction_bias,
            "groups": config.n_group,
            "top_groups": config.topk_group,
            "scale": config.routed_scaling_factor,
        }

    def _expert(self, prefix: str) -> DeepSeekExpert[W]:
        gate, up, down = (self.weight(f"{prefix}{name}_proj") for name in ("gate", "up", "down"))
        return DeepSeekExpert(gate, up, down)


class DeepSeekCheckpoint(_DeepSeek[BlockScaledWeight]):
    """A DeepSeek-V3 or R1 checkpoint, FP8 with an FP32 scale for 128 x 128 codes.

    Attributes:
        weights: the format of the experts' weights, "block_fp8".
    """

    weights = WEIGHTS

    def __init__(self, folder: Path, config: DeepSeekConfig) -> None:
        """Check the folder against `config`."""
        super().__init__(folder, config, lambda: deepseek_tensors(config))

    def weight(self, name: str) -> BlockScaledWeight:
        """See `_DeepSeek.weight`."""
        return BlockScaledWeight(self.tensor(f"{name}.weight"), self.tensor(f"{name}.weight_scale_inv"))

    def block_fp8_layer(self, layer: int, *, first_expert: int = 0, experts: int | None = None) -> DeepSeekMoELayer:
        """Router and experts of a layer as the path `deepseek_fp8` takes them.

        An expert's three matrices are put together when a token goes to it; of the others nothing is read. A layer's
        experts are 11.3 GB of DeepSeek-V3, one of them is 44 MB.

        Args:
            layer: its number.
            first_expert: the first of a rank's experts.
            experts: how many it has; None for all from the first on. The shared expert and the router are whole.

        Raises:
            ArgumentError: there is no such layer, it has no experts, or no such experts; sizes that are no multiples of
                128, which share a scale.
        """
        found = self.moe_layer(layer)
        routed = BlockFP8Experts(found.experts, *self._rank(first_expert, experts))
        return DeepSeekMoELayer(routed, shared=block_fp8_expert(found.shared), **self._sizes_and_router(found))


def block_fp8_expert(expert: DeepSeekExpert[BlockScaledWeight]) -> BlockFP8Expert:
    """An expert with gate and up in one matrix, the gate's rows first.

    Raises:
        ArgumentError: sizes that are no multiples of 128.
    """
    for name, weight in (("gate_proj", expert.gate), ("up_proj", expert.up), ("down_proj", expert.down)):
        if any(size % SCALE_BLOCK for size in weight.shape):
            raise ArgumentError(name, f"{list(weight.shape)}", f"multiples of {SCALE_BLOCK}, which share a scale")
    both = (expert.gate, expert.up)
    gate_up = BlockFP8Tensor(
        np.concatenate([part.codes for part in both]), np.concatenate([part.scale_inv for part in both]), _TILE
    )
    return BlockFP8Expert(gate_up, BlockFP8Tensor(expert.down.codes, expert.down.scale_inv, _TILE))


class _RankExperts(Sequence[E], ABC, Generic[W, E]):
    """Some of a layer's experts as a path takes them; one is put together each time that it is asked for."""

    def __init__(self, experts: Experts[W], first: int, count: int) -> None:
        """Those from `first` on."""
        self._experts, self._numbers = experts, range(first, first + count)

    @abstractmethod
    def _made(self, number: int) -> E:
        """The expert of that number of the whole layer."""

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> E: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[E, ...]: ...
    def __getitem__(self, index: int | slice) -> E | tuple[E, ...]:
        if isinstance(index, slice):
            return tuple(self._made(number) for number in self._numbers[index])
        return self._made(self._numbers[index])


class BlockFP8Experts(_RankExperts[BlockScaledWeight, BlockFP8Expert]):
    """Those in block FP8."""

    def _made(self, number: int) -> BlockFP8Expert:
        return block_fp8_expert(self._experts[number])


class DeepSeekNVFP4Checkpoint(_DeepSeek[NVFP4Linear | Array]):
    """A DeepSeek-V3 or R1 checkpoint that ModelOpt quantized to NVFP4.

    Attributes:
        excluded: wildcards of the modules that are BF16.
        weights: the format of the experts' weights, "nvfp4".
    """

    weights = NVFP4.name

    def __init__(self, folder: Path, config: DeepSeekConfig, excluded: tuple[str, ...]) -> None:
        """Check the folder against `config` and the list of modules that are not quantized."""
        self._quantizes = quantizes(excluded)
        super().__init__(folder, config, lambda: deepseek_nvfp4_tensors(config, self._quantizes))
        self.excluded = excluded

    @property
    def shared_in_bf16(self) -> bool:
        """Whether some layer's shared expert was not quantized."""
        names = (f"model.layers.{layer}.mlp.shared_experts.gate_proj" for layer in self.moe_layers)
        return not all(self._quantizes(name) for name in names)

    def weight(self, name: str) -> NVFP4Linear | Array:
        """The layer `name`: an NVFP4Linear, or BF16 [N, K] if it was not quantized. See `_DeepSeek.weight`."""
        if self._quantizes(name):
            return checked_nvfp4(self.path, name, self.tensor)
        return self.tensor(f"{name}.weight")

    def nvfp4_layer(self, layer: int, *, first_expert: int = 0, experts: int | None = None) -> DeepSeekNVFP4Layer:
        """Router and experts of a layer as the paths `nvfp4` and `marlin` take them.

        An expert's matrices are put together when a token goes to it; of the others nothing is read.

        Args:
            layer: its number.
            first_expert: the first of a rank's experts.
            experts: how many it has; None for all from the first on. The shared expert and the router are whole.

        Raises:
            ArgumentError: there is no such layer, it has no experts, or no such experts; sizes that are no multiples of
                32.
            CheckpointError: a routed expert that was not quantized, when a token goes to it; a shared expert of which a
                part was; gate and up under different factors.
        """
        found = self.moe_layer(layer)
        prefix = f"model.layers.{layer}.mlp."
        routed = NVFP4Routed(found.experts, *self._rank(first_expert, experts), self.path, f"{prefix}experts.")
        shared = nvfp4_or_bf16_expert(self.path, f"{prefix}shared_experts", found.shared)
        return DeepSeekNVFP4Layer(routed, shared=shared, **self._sizes_and_router(found))


def nvfp4_or_bf16_expert(
    path: Path, name: str, expert: DeepSeekExpert[NVFP4Linear | Array]
) -> NVFP4Expert | BF16Expert:
    """An expert with gate and up in one matrix, the gate's rows first.

    Servers multiply gate and up in one product, which has one factor and takes the tokens in one form. ModelOpt gives
    both the same factors. What a server makes of different ones is its own, so they are refused: vLLM warns, and takes
    the gate's `weight_scale_2` for routed experts and the larger one for a linear layer.

    Args:
        path: the checkpoint's, for errors.
        name: likewise, the expert's.
        expert: its three matrices.

    Raises:
        CheckpointError: matrices of which some are NVFP4 and some BF16, or gate and up under different factors.
        ArgumentError: sizes that are no multiples of 32.
    """
    gate, up, down = expert.gate, expert.up, expert.down
    if isinstance(gate, NVFP4Linear) and isinstance(up, NVFP4Linear) and isinstance(down, NVFP4Linear):
        for factor, one, other in (
            ("weight_scale_2", gate.weight.global_decode_scale, up.weight.global_decode_scale),
            ("input_scale", gate.input_scale, up.input_scale),
        ):
            if one != other:
                needed = f"{one}, the {factor} of gate_proj: one product multiplies both"
                raise CheckpointError(path, f"{name}.up_proj.{factor}", f"{other}", needed)
        codes, scales = (np.concatenate(parts) for parts in zip(*_parts(gate, up), strict=True))
        gate_up = NVFP4Tensor(codes, scales, gate.weight.global_decode_scale)
        return NVFP4Expert(gate_up, down.weight, gate.input_scale, down.input_scale)
    if isinstance(gate, np.ndarray) and isinstance(up, np.ndarray) and isinstance(down, np.ndarray):
        return BF16Expert(np.concatenate([gate, up]), down)
    formats = ("NVFP4" if isinstance(each, NVFP4Linear) else "BF16" for each in (gate, up, down))
    found = ", ".join(f"{part}_proj in {each}" for part, each in zip(("gate", "up", "down"), formats, strict=True))
    raise CheckpointError(path, name, found, "all three in NVFP4, or all three in BF16")


def _parts(*linear: NVFP4Linear) -> list[tuple[Array, Array]]:
    return [(each.weight.codes, each.weight.scales) for each in linear]


class NVFP4Routed(_RankExperts[NVFP4Linear | Array, NVFP4Expert]):
    """Those in NVFP4."""

    def __init__(self, experts: Experts[NVFP4Linear | Array], first: int, count: int, path: Path, prefix: str) -> None:
        """Those from `first` on; `path` and `prefix` are the checkpoint's and their names', for errors."""
        super().__init__(experts, first, count)
        self._path, self._prefix = path, prefix

    def _made(self, number: int) -> NVFP4Expert:
        name = f"{self._prefix}{number}"
        made = nvfp4_or_bf16_expert(self._path, name, self._experts[number])
        if isinstance(made, BF16Expert):
            raise CheckpointError(self._path, name, "a routed expert in BF16", "NVFP4: no path of NVFP4 takes another")
        return made
