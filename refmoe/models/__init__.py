"""Checkpoints of gpt-oss and DeepSeek-V3, and decoders whose mixture of experts can be exchanged."""

from __future__ import annotations

from refmoe.models.block_scaled import BlockScaledWeight
from refmoe.models.checkpoint import GptOssCheckpoint
from refmoe.models.config import DeepSeekConfig, GptOssConfig
from refmoe.models.decoder import Decoder, LayerStep, MoEPath, Step
from refmoe.models.deepseek import DeepSeekCheckpoint, DeepSeekLayer, DeepSeekNVFP4Checkpoint
from refmoe.models.expert_stack import ExpertStack
from refmoe.models.gguf.checkpoint import GgufCheckpoint
from refmoe.models.memory import MemoryPlan, memory_plan
from refmoe.models.modelopt import NVFP4Linear
from refmoe.models.opening import open_checkpoint
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
    "DeepSeekNVFP4Checkpoint",
    "ExpertStack",
    "GgufCheckpoint",
    "GptOssCheckpoint",
    "GptOssConfig",
    "LayerStep",
    "MemoryPlan",
    "MoEPath",
    "NVFP4Linear",
    "State",
    "Step",
    "memory_plan",
    "open_checkpoint",
    "write_checkpoint",
]
