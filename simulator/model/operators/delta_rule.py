"""Kimi Delta Attention's delta rule: kernels, tensors kept and temporaries of the three ways of running it.

Fused: the kernels of `kernels/kda.py` and `kernels/kda_backward.py`, in chunks of 16 tokens. One solves all chunks at
once, one walks them; backward both run again, a walk goes back, and one takes the gradients of each chunk's inputs.
Only inputs are kept. Partly fused: the chain of flash-linear-attention in chunks of 64 (models_and_formulas section
3.6, "Kernel list and bytes per token-head"): 10,032 B a token and head forward and 26,524 backward at d = 128. Other
head dims scale the chain's bytes by d / 128, which is exact but for the C-wide score matrices. Small operators:
`delta_rule_small`.

Both count the FLOPs of chunks of 64, 6 d^2 + 6 C d + 40 BC^2 d / C + 32 BC^3 / C a token and head (BC = 16) forward,
which time does not depend on: traffic and the walk bind.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.model.operator import Kernel, Saved
from simulator.model.operators.lane import FP32_BYTES, Lane

CHUNK = 64
_SUB_CHUNK = 16
_FUSED_CHUNK = 16
_TABLE_DIM = 128

_Step = tuple[str, int, int, int]
"""Kernel kind, FLOPs and bytes a token and head at d = 128, launches."""

_CHAIN_FORWARD: tuple[_Step, ...] = (
    ("norm", 0, 1032, 2),  # l2 norms of q and k
    ("elementwise", 0, 768, 1),  # gate and its cumulative sum within the chunk
    ("kda", 8_192, 1248, 1),  # scores within sub-chunks
    ("fill", 0, 128, 1),  # zero fill of the key-key scores
    ("kda", 14_336, 1216, 1),  # scores between sub-chunks and the triangular inverse
    ("kda", 32_768, 1920, 1),  # w and u
    ("kda", 65_536, 1544, 1),  # the state, sequential over chunks
    ("kda", 49_152, 2176, 1),  # output
)
_CHAIN_BACKWARD: tuple[_Step, ...] = (
    ("elementwise", 0, 768, 1),  # again: gate and cumulative sum
    ("kda", 32_768, 2432, 1),  # again: w and u, with the gated q and k
    ("kda", 65_536, 1544, 1),  # again: the state
    ("kda", 32_768, 1152, 1),  # dA and dv
    ("kda", 98_304, 2048, 1),  # the state's gradient, sequential over chunks
    ("kda", 180_224, 5252, 1),  # w, y, dq, dk, dg in fp32
    ("kda", 40_960, 6160, 1),  # gradients through the scores
    ("elementwise", 0, 1024, 1),  # reverse cumulative sum
    ("elementwise", 0, 1280, 1),  # the gate's gradient
    ("norm", 0, 2560, 2),  # l2 norms' gradient
    ("cast_down", 0, 2304, 3),
)


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """How it runs on a rank's tokens: kernels of both passes, what is kept between them, temporaries of each."""

    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    saved: tuple[Saved, ...]
    workspace_bytes: float
    backward_workspace_bytes: float


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of *dim* channels over a lane of tokens, in sequences of *longest* at most."""

    lane: Lane
    count: int
    dim: int
    longest: int

    @property
    def rows(self) -> int:
        """Tokens times heads."""
        return self.lane.count * self.count


def forward_flops(head_dim: int) -> float:
    """FLOPs of the chunked delta rule a token and head, with equal key and value dims."""
    inner = 40 * _SUB_CHUNK**2 * head_dim + 32 * _SUB_CHUNK**3
    return 6 * head_dim**2 + 6 * CHUNK * head_dim + inner / CHUNK


def fused(heads: Heads) -> DeltaRule:
    """A kernel for all chunks and one that walks them; five kernels backward, with the first two once more."""
    d, b, c = heads.dim, heads.lane.element_bytes, _FUSED_CHUNK
    whole = _scaled(heads, 1.0)
    vector, square, inputs = d * b, c * b, 4 * d * b + b
    decay, state = d * FP32_BYTES / c, d * d * b / c
    prepared = 4 * vector + square + decay
    prepare = ("kda_prepare", 71_680, inputs + prepared)
    again = ("kda_prepare", 32_768, inputs + prepared + square + 2 * decay)
    walk = ("kda_scan", 98_304, prepared + vector)
    walk_again = ("kda_scan", 65_536, 3 * vector + decay + state + vector)
    walk_back = ("kda_scan", 98_304, 3 * vector + square + decay + vector + state + vector)
    # Gradients of four inputs and beta are written, and those of rate and bias a chunk, which are summed afterwards.
    local = ("kda_local", 253_952, inputs + 3 * vector + square + 2 * state + 2 * decay + inputs + 2 * decay)
    kept = tuple(Saved(f"delta_{name}", heads.rows * vector) for name in ("query", "key", "value", "decay"))
    scratch = prepared + square + 2 * decay + 2 * state + 2 * vector + 2 * decay
    return DeltaRule(
        forward=tuple(_kernel(heads, whole, *step) for step in (prepare, walk)),
        backward=tuple(_kernel(heads, whole, *step) for step in (again, walk_again, walk_back, local)),
        saved=(*kept, Saved("delta_beta", heads.rows * b)),
        workspace_bytes=heads.rows * prepared,
        backward_workspace_bytes=heads.rows * scratch,
    )


def chain(heads: Heads) -> DeltaRule:
    """flash-linear-attention's kernels; it keeps normed q and k and both score matrices."""
    d, b, rows = heads.dim, heads.lane.element_bytes, heads.rows
    scale = _scaled(heads, d / _TABLE_DIM)
    forward, backward = (
        tuple(_kernel(heads, scale, kind, flops, moved, launches) for kind, flops, moved, launches in steps)
        for steps in (_CHAIN_FORWARD, _CHAIN_BACKWARD)
    )
    kept = [Saved(f"delta_{name}", rows * d * b) for name in ("query", "key", "value", "decay")]
    kept.append(Saved("delta_beta", rows * (b + FP32_BYTES)))
    kept.append(Saved("delta_scores", rows * 2 * CHUNK * b))
    kept.append(Saved("delta_norms", rows * 2 * FP32_BYTES))
    # Decay sums in fp32, w, u, gated k and new v in bf16, and the states of all chunks.
    workspace = d * FP32_BYTES + 4 * d * 2 + 2 * d * d / CHUNK
    return DeltaRule(forward, backward, tuple(kept), rows * workspace, rows * (workspace + 4 * d * FP32_BYTES))


_Scale = tuple[float, float]
"""What a step's FLOPs at d = 128, and its bytes, are multiplied by."""


def _scaled(heads: Heads, bytes_scale: float) -> _Scale:
    return heads.rows * forward_flops(heads.dim) / forward_flops(_TABLE_DIM), heads.rows * bytes_scale


def _kernel(heads: Heads, scale: _Scale, kind: str, flops: float, moved: float, launches: int = 1) -> Kernel:
    shape = (heads.count, heads.dim, heads.longest)
    return Kernel(kind, flops * scale[0], moved * scale[1], shape, heads.lane.dtype, launches=launches)
