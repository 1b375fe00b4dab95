"""Softmax attention in one flash kernel, and how many query-key pairs it visits.

Forward 2 H (d_qk + d_v) FLOPs a pair; backward recomputes the scores and makes four more products, 2 H (3 d_qk + 2
d_v). Keeps q, k, v, the output and one fp32 log-sum-exp a row and head (models_and_formulas section 3.4). Keys and
values that do not fit into the L2 cache are read again by every block of queries; that is the efficiency curve's
business.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.model.operator import Kernel, Operator, Saved, Workload
from simulator.model.operators.lane import FP32_BYTES, Lane, pointwise

ATTENTION_OUTPUT = "attention_output"
"""Name of the saved output of every attention core."""
ATTENTION_STATISTICS = "attention_statistics"
"""Name of what a flash kernel saves beside it."""
GENERATIONS = ("flash2", "flash_triton")
"""Flash kernels older than the best of a part, each a kind of its own: FlashAttention-2, and FlashAttention in Triton
of 2022, as MosaicML's MPT ran it."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads of queries and of keys and values, with the dims of one head."""

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int

    @property
    def query(self) -> int:
        """Elements of one token's queries."""
        return self.heads * self.qk_dim

    @property
    def key(self) -> int:
        """Elements of one token's keys."""
        return self.kv_heads * self.qk_dim

    @property
    def value(self) -> int:
        """Elements of one token's values."""
        return self.kv_heads * self.v_dim

    @property
    def output(self) -> int:
        """Elements of one token's output."""
        return self.heads * self.v_dim


def core_kind(workload: Workload) -> str:
    """The kind of kernel that attention is: each generation of it has rates of its own."""
    return workload.attention if workload.attention in GENERATIONS else "attention"


def causal_pairs(lengths: tuple[int, ...]) -> int:
    """Query-key pairs of causal attention within each of *lengths* tokens: L (L + 1) / 2 each."""
    return sum(length * (length + 1) // 2 for length in lengths)


def window_pairs(lengths: tuple[int, ...], window: int) -> int:
    """Pairs where each query sees itself and the *window* - 1 tokens before it."""
    return causal_pairs(lengths) - causal_pairs(tuple(max(0, length - window) for length in lengths))


def chunk_pairs(lengths: tuple[int, ...], chunk: int) -> int:
    """Pairs where queries see only their own chunk of *chunk* tokens."""
    return sum(length // chunk * causal_pairs((chunk,)) + causal_pairs((length % chunk,)) for length in lengths)


def flash_attention(
    lane: Lane,
    workload: Workload,
    shape: AttentionShape,
    pairs: float,
    *,
    value_saved: int | None = None,
    key_saved: int | None = None,
    sinks: tuple[str, ...] = (),
) -> Operator:
    """The attention core over *pairs* query-key pairs.

    *key_saved*: elements a token that are kept of the keys, where it is not all. *value_saved*: elements a token of the
    tensor that the values are a view of, where it is larger than they are, or that are kept of them.
    *sinks*: the parameter of learnt sink logits, whose gradient comes out of the output's row sums.
    """
    inputs = _inputs(lane, workload, shape)
    output, statistics = lane.tensor_bytes(shape.output), lane.count * shape.heads * FP32_BYTES
    return Operator(
        "attention",
        forward=(
            _kernel(
                lane,
                workload,
                shape,
                2.0 * shape.heads * (shape.qk_dim + shape.v_dim) * pairs,
                inputs + output + statistics,
            ),
        ),
        backward=_backward(lane, workload, shape, pairs),
        backward_weight=(pointwise(2 * statistics),) if sinks else (),
        weights=sinks,
        saved=(
            lane.saved("query", shape.query),
            lane.saved("key", shape.key if key_saved is None else key_saved),
            lane.saved("value", shape.value if value_saved is None else value_saved),
            lane.saved(ATTENTION_OUTPUT, shape.output),
            Saved(ATTENTION_STATISTICS, statistics),
        ),
        modules=("core_attn",),
        makes=ATTENTION_OUTPUT,
        output_bytes=output,
    )


def _backward(lane: Lane, workload: Workload, shape: AttentionShape, pairs: float) -> tuple[Kernel, ...]:
    """The main kernel with fp32 sums of dq; row sums of output times gradient, dq's cast, dk and dv by group.

    The kernels around the main one cost the host their launches; their device time is in the attention curve, which is
    measured over the whole backward call.
    """
    flops = 2.0 * shape.heads * (3 * shape.qk_dim + 2 * shape.v_dim) * pairs
    inputs = _inputs(lane, workload, shape)
    output, statistics = lane.tensor_bytes(shape.output), lane.count * shape.heads * FP32_BYTES
    sums = lane.count * shape.query * FP32_BYTES
    around = 4 if shape.kv_heads < shape.heads else 2
    return (
        _kernel(lane, workload, shape, flops, 2 * inputs + output + 2 * statistics + sums),
        Kernel(core_kind(workload), 0.0, 0.0, dtype=lane.dtype, launches=around),
    )


def _inputs(lane: Lane, workload: Workload, shape: AttentionShape) -> float:
    """Bytes of the rank's queries, and of the keys and values of the whole sequences."""
    return lane.tensor_bytes(shape.query) + workload.cp * lane.tensor_bytes(shape.key + shape.value)


def _kernel(lane: Lane, workload: Workload, shape: AttentionShape, flops: float, moved_bytes: float) -> Kernel:
    length = max(workload.sequence_lengths)
    return Kernel(core_kind(workload), flops, moved_bytes, (shape.heads, shape.qk_dim, length), lane.dtype)
