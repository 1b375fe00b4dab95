"""Formats of weights and of the cache as inference engines store them.

A weight has its elements and the scales of groups of them; what it multiplies with is cast to the format of the
product's arithmetic, or the weight is cast to bf16 on its way to the tensor cores ("weight-only"). Embedding, output
layer, norms, routers and indexers stay as the checkpoint has them, as published quantised checkpoints leave them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CacheFormat = Literal["bf16", "fp8"]
WHOLE_ROW = 0
"""A group that is a whole row of a weight: all inputs of one output."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How a weight lies in memory and what its products compute in."""

    name: str
    element_bytes: float
    group: int
    """Weights along the inner width that share one scale; `WHOLE_ROW`: all of them."""
    rows: int
    """Outputs that share it."""
    scale_bytes: float
    arithmetic: str
    """Format of the products, with its scales, where the accelerator has it; elsewhere they are of bf16."""
    activation_bytes: float
    """Of an element that multiplies it, where products are of *arithmetic*."""

    def weight_bytes(self, out: int, into: int) -> float:
        """Of a weight with *out* outputs and *into* inputs, scales included."""
        group = into if self.group == WHOLE_ROW else self.group
        return out * into * (self.element_bytes + self.scale_bytes / (group * self.rows))


BF16 = WeightFormat("bf16", 2.0, WHOLE_ROW, 1, 0.0, "bf16", 2.0)

FORMATS: dict[str, WeightFormat] = {
    each.name: each
    for each in (
        BF16,
        # One fp32 scale for 128 x 128 weights and for 128 activations (DeepSeek-V3 report, section 3.3.2).
        WeightFormat("fp8", 1.0, 128, 128, 4.0, "fp8/blockwise", 1 + 4 / 128),
        # One fp32 scale an output and a token (SmoothQuant's W8A8: Xiao et al., ICML 2023).
        WeightFormat("int8", 1.0, WHOLE_ROW, 1, 4.0, "int8", 1.0),
        # 128 weights share a scale of bf16 (AWQ, GPTQ); 32 do in Kimi K2 Thinking's and K2.5's experts.
        WeightFormat("int4", 0.5, 128, 1, 2.0, "bf16", 2.0),
        WeightFormat("int4_group32", 0.5, 32, 1, 2.0, "bf16", 2.0),
        # A power of two for 32 weights (OCP Microscaling Formats 1.0); activations stay in bf16 (gpt-oss).
        WeightFormat("mxfp4", 0.5, 32, 1, 1.0, "bf16", 2.0),
        # An fp8 scale for 16 weights and 16 activations (NVIDIA, NVFP4).
        WeightFormat("nvfp4", 0.5, 16, 1, 1.0, "fp4", 0.5 + 1 / 16),
    )
}


@dataclass(frozen=True, slots=True)
class Formats:
    """Of one deployment."""

    dense: WeightFormat = BF16
    """Linear layers outside the routed experts."""
    experts: WeightFormat = BF16
    cache: CacheFormat = "bf16"
    """Keys and values; states and indexers' keys have formats of their own."""
