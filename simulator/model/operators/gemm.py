"""Linear layers, dense and one per expert, with the three matrix products of a training step.

y[m, n] = x[m, k] W moves B (mk + kn + mn) bytes and costs 2 m n k FLOPs, as do the input's and the weight's gradient
(models_and_formulas section 3.1; 3.2 for grouped products). The input is kept for the weight's gradient alone.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.model.operator import Kernel, Operator, Saved
from simulator.model.operators.lane import Lane, pointwise


def product(lane: Lane, m: int, n: int, k: int) -> Kernel:
    """The matrix product of an (m, k) with a (k, n) operand."""
    moved = lane.element_bytes * (m * k + k * n + m * n)
    return Kernel("gemm", 2.0 * m * n * k, moved, (m, n, k), lane.dtype)


def linear(
    lane: Lane,
    name: str,
    source: str,
    width_in: int,
    width_out: int,
    weights: tuple[str, ...],
    *,
    bias: bool = False,
    shares_input: bool = False,
    backward: bool = True,
    makes: str = "",
) -> Operator:
    """A linear layer over the tensor named *source*.

    Several *weights* stand for one product over their joined columns, *width_out* in all. *shares_input*: an earlier
    operator reads the same tensor, so autograd adds the input's gradients in a kernel that only a compiler fuses.
    *backward* False: no gradient flows (its output is only compared, as an indexer's is). *makes*: the saved tensor
    that its result is, or is a part of.
    """
    m = lane.count
    kept = Saved(source, lane.kept_bytes(width_in), "weight_gradient", weights)
    grad_input: tuple[Kernel, ...] = (product(lane, m, width_in, width_out),)
    if shares_input and lane.execution != "compiled":
        grad_input += (pointwise(3 * lane.tensor_bytes(width_in), m * width_in),)
    grad_weight: tuple[Kernel, ...] = (product(lane, width_out, width_in, m),)
    if bias:
        grad_weight += (pointwise(lane.tensor_bytes(width_out), m * width_out, kind="reduction"),)
        weights += tuple(weight.removesuffix("weight") + "bias" for weight in weights)
    return Operator(
        name,
        forward=(product(lane, m, width_out, width_in),),
        backward=grad_input if backward else (),
        backward_weight=grad_weight if backward else (),
        weights=weights,
        reads=source if backward else "",
        saved=(kept,) if backward else (),
        makes=makes,
        output_bytes=lane.tensor_bytes(width_out),
    )


def batched_linear(
    lane: Lane, name: str, source: str, groups: int, width_in: int, width_out: int, weights: tuple[str, ...]
) -> Operator:
    """*groups* small matrices, each on its own slice of every token: a batched product, priced as one of m x groups
    rows.
    """
    rows = lane.count * groups
    other_matrices = lane.element_bytes * (groups - 1) * width_in * width_out

    def kernel(m: int, n: int, k: int) -> Kernel:
        one = product(lane, m, n, k)
        return replace(one, bytes=one.bytes + other_matrices)

    return Operator(
        name,
        forward=(kernel(rows, width_out, width_in),),
        backward=(kernel(rows, width_in, width_out),),
        backward_weight=(kernel(width_out, width_in, rows),),
        weights=weights,
        saved=(Saved(source, lane.tensor_bytes(groups * width_in), "weight_gradient", weights),),
        output_bytes=lane.tensor_bytes(groups * width_out),
    )


def grouped_linear(
    lane: Lane, name: str, source: str, width_in: int, width_out: int, weights: tuple[str, ...], *, bias: bool = False
) -> Operator:
    """One matrix per expert, over routed rows: costs of one row, and one expert's weights as fixed bytes.

    The weight's gradient contracts over the rows; its kernel's (n, k) is the gradient's shape and its fixed bytes the
    write of one expert's gradient.
    """
    size = lane.element_bytes
    flops, moved, held = 2.0 * width_in * width_out, size * (width_in + width_out), size * width_in * width_out

    def kernel(n: int, k: int) -> Kernel:
        return Kernel("grouped_gemm", flops, moved, (n, k), lane.dtype, fixed_bytes=held)

    return Operator(
        name,
        forward=(kernel(width_out, width_in),),
        backward=(kernel(width_in, width_out),),
        backward_weight=(kernel(width_out, width_in),),
        weights=weights + (tuple(f"{weight}_bias" for weight in weights) if bias else ()),
        reads=source,
        saved=(Saved(source, size * width_in, "weight_gradient", weights),),
        output_bytes=size * width_out,
        rows="routed",
    )
