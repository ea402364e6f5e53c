"""Checkpoints of gpt-oss and DeepSeek-V3, and a decoder whose mixture of experts can be exchanged."""

from __future__ import annotations

from refmoe.models.block_scaled import BlockScaledWeight
from refmoe.models.checkpoint import DeepSeekCheckpoint, DeepSeekLayer, GptOssCheckpoint, open_checkpoint
from refmoe.models.config import DeepSeekConfig, GptOssConfig
from refmoe.models.decoder import Decoder, LayerStep, MoEPath, Step
from refmoe.models.memory import MemoryPlan, memory_plan
from refmoe.models.state import State
from refmoe.models.tensor_file import CheckpointError
from refmoe.models.writer import write_checkpoint

__all__ = [
    "BlockScaledWeight",
    "CheckpointError",
    "Decoder",
    "DeepSeekCheckpoint",
    "DeepSeekConfig",
    "DeepSeekLayer",
    "GptOssCheckpoint",
    "GptOssConfig",
    "LayerStep",
    "MemoryPlan",
    "MoEPath",
    "State",
    "Step",
    "memory_plan",
    "open_checkpoint",
    "write_checkpoint",
]
