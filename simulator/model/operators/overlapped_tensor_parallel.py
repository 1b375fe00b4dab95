"""Tensor parallelism whose gathers and scatters run in parts beside the products that they feed or empty.

Compiled layers, PyTorch's asynchronous tensor parallelism (inductor's `micro_pipeline_tp`, operators of
`torch.distributed._symmetric_memory`): each rank copies its own tokens into a buffer that the others read. Behind that
a part for each rank is fetched by the copy engines while the products of the part before run. A product before a
scatter runs in as many parts, each of which is fetched by its rank beside the next one, and a kernel sums what came.
Both spare the copies around a library's transfer, but what is gathered so stands token by token and not sequence by
sequence: in bf16, the gradient of weights reads a copy of it (a cast reads it as it stands). What stays as it is: the
scatter of an input's gradient, which is the sum of several products, and gathers of tensors that are cast behind them
(fp8 with scales of rows).

Fused layers, Transformer Engine's user buffers (Megatron-LM's `tp_comm_overlap`; the defaults of `initialize_ub`):
gathers before products of qkv and fc1, and of gradients before those of proj and fc2, go round by the copy engines, a
part a rank; scatters behind proj and fc2 follow four parts of the product, and gathers and scatters of the backward
pass of qkv and fc1 run whole beside the gradients of input and weights, on 16 compute units. Only where one product
reads what was gathered.

Parts are priced one after the other, where the stacks run neighbours on two or three streams, which fills units that a
small product leaves idle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from simulator.model.operator import Collective, Kernel, Operator, Workload
from simulator.model.operators.lane import pointwise

SCATTERED_PARTS = 4
"""Parts of a product whose sums Transformer Engine scatters (`num_splits` of its pipelined overlap)."""
UNITS = 16
"""Compute units of its transfers that no copy engine does (`num_sm`)."""
_GATHERED_BUFFERS, _SUMMED_BUFFERS = 6, 4
"""Of whole tensors: qkv and fc1 in three products, proj and fc2 in two, of which those hold sums that are scattered."""


def beside_products(operators: Iterable[Operator], workload: Workload) -> tuple[Operator, ...]:
    """*operators* of a layer with its tensor-parallel transfers beside products, as the workload's stack has them."""
    found = list(operators)
    if not workload.overlaps_tensor_parallel:
        return tuple(found)
    for number, operator in enumerate(found):
        if operator.name == "tp_gather":
            readers = _readers(found, number)
            if readers and _feeds(found[number + 1], workload, len(readers)):
                _gather_beside(found, number, readers, workload)
        if operator.name == "tp_scatter" and _is_product(found[number - 1]):
            _scatter_beside(found, number, workload)
    return tuple(found)


def buffer_bytes(workload: Workload, hidden: int) -> float:
    """What the stack's buffers hold of a model *hidden* wide: parts of two ranks' tokens, or ten whole tensors."""
    whole = float(workload.tokens * hidden)
    if workload.execution == "fused":
        gathered = 1 if workload.float8 else workload.activation_bytes
        return whole * (_GATHERED_BUFFERS * gathered + _SUMMED_BUFFERS * workload.activation_bytes)
    return 2 * whole * workload.activation_bytes / workload.tp


def _readers(operators: list[Operator], gather: int) -> list[int]:
    """Positions of the products right behind a *gather* that read what it brings."""
    found: list[int] = []
    for number in range(gather + 1, len(operators)):
        if not _is_product(operators[number]) or operators[number].reads != operators[gather + 1].reads:
            break
        found.append(number)
    return found


def _is_product(operator: Operator) -> bool:
    return bool(operator.reads) and operator.rows == "tokens"


def _feeds(product: Operator, workload: Workload, readers: int) -> bool:
    """Whether the stack knows a gather before *product*, one of so many *readers*."""
    if workload.execution == "fused":
        return readers == 1
    return workload.float8 is None or product.forward[-1].dtype == "bf16" or workload.float8.recipe == "tensorwise"


def _gather_beside(found: list[Operator], number: int, readers: list[int], workload: Workload) -> None:
    """Put the gather at *number* beside its *readers*: forward, and in a fused stack backward."""
    gather, tp, fused = found[number], workload.tp, workload.execution == "fused"
    (whole,) = gather.forward_collectives
    found[number] = replace(
        gather,
        forward=(*_casts(gather.forward), _to_buffer(whole, tp)),
        forward_collectives=(_from_each(whole, tp),),
        parts=tp,
        own_part=True,
        workspace_bytes=0.0,
        output_bytes=0.0 if fused else gather.output_bytes,
        backward_collectives=() if fused else gather.backward_collectives,
    )
    beside = tuple(replace(one, units=UNITS) for one in gather.backward_collectives) if fused else ()
    for reader in readers:
        found[reader] = replace(found[reader], parts=tp, beside_gradients=beside)
    if not fused:
        found[readers[0]] = _with_input_turned(found[readers[0]], whole)


def _scatter_beside(found: list[Operator], number: int, workload: Workload) -> None:
    """Put the scatter at *number* beside the product before it, and backward the gather before that product's."""
    scatter, product, tp, fused = found[number], found[number - 1], workload.tp, workload.execution == "fused"
    (whole,), (back,) = scatter.forward_collectives, scatter.backward_collectives
    parts = SCATTERED_PARTS if fused else tp
    summed = replace(whole, bytes=whole.bytes / parts, units=UNITS) if fused else _from_each(whole, tp)
    sums = () if fused else (pointwise(whole.bytes * (1 + 1 / tp), kind="reduction"),)
    scatter = replace(
        scatter, forward=sums, forward_collectives=(summed,), parts=parts, own_part=not fused, workspace_bytes=0.0
    )
    product = replace(product, parts=parts)
    if fused or _feeds(product, workload, 1):
        scatter = replace(
            scatter,
            backward=(*_casts(scatter.backward), _to_buffer(back, tp)),
            backward_collectives=(_from_each(back, tp),),
            parts_back=tp,
            own_part_back=True,
            backward_workspace_bytes=0.0,
        )
        product = replace(product, parts_back=tp)
        if not fused:
            product = _with_input_turned(product, back)
    found[number], found[number - 1] = scatter, product


def _with_input_turned(product: Operator, gathered: Collective) -> Operator:
    """A bf16 *product* whose gradient of weights reads what was *gathered*, sequence by sequence."""
    if product.forward[-1].dtype != "bf16":
        return product
    copy = pointwise(2 * gathered.bytes, kind="copy")
    return replace(product, backward_weight=(copy, *product.backward_weight))


def _casts(kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """What is not a copy around a library's transfer."""
    return tuple(kernel for kernel in kernels if kernel.kind not in ("copy", "cat", "part_copy"))


def _to_buffer(whole: Collective, tp: int) -> Kernel:
    """The copy of a rank's own tokens to where the others find them."""
    return pointwise(2 * whole.bytes / tp, kind="copy")


def _from_each(whole: Collective, tp: int) -> Collective:
    """One rank's tokens, by the copy engines."""
    return Collective("send", "tp", whole.bytes / tp, units=0)
