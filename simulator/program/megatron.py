"""What Megatron-LM with Transformer Engine holds beside weights and activations, and how its gradients come to be.

The matmul of a linear layer's gradient adds into the buffer itself (gradient accumulation fusion, where it is *fused*).
Autograd still wants a tensor: Transformer Engine hands it one that nobody reads and keeps it for later, one for every
shape of weight (`get_dummy_wgrad`); Megatron's own output layer makes one each time. Every other gradient, the
embedding's, norms' and biases', is a bf16 tensor first, which a hook on its weight adds into the buffer in a kernel of
its own. Each expert's matrix is a weight of its own to a hook; those of experts without rows take no time here.

The joined product of q, k and v puts each group's heads side by side. So q is copied out of it where a group has
several heads, v because Transformer Engine wants it laid out as k is behind its rotation, and the three gradients are
joined again (`get_query_key_value_tensors`, `get_qkv_layout`).

With sequence parallelism Megatron's own output layer gathers its input, in both passes, into a buffer that stays
(`get_global_memory_buffer`); Transformer Engine's layers gather into tensors that they free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from simulator.model.architecture import GroupedAttention
from simulator.model.operator import Kernel, Operator, Workload
from simulator.program.fsdp import COMPUTE_BYTES
from simulator.program.step import MATMULS

_OWN_LINEAR = ("router",)
"""Linear layers that are not Transformer Engine's."""


def hooked_weights(operator: Operator, *, fused: bool = True) -> tuple[str, ...]:
    """Weights of *operator* whose gradients a hook adds into the buffer: all, where matmuls are not *fused* with that.

    Biases of routed experts are left out: Transformer Engine sums their rows as part of its grouped products.
    """
    if operator.rows == "routed":
        return () if fused else tuple(name for name in operator.weights if not name.endswith("bias"))
    apart = not fused or not _has_matmul(operator)
    return tuple(name for name in operator.weights if apart or name.endswith("bias"))


def with_hooks(
    operator: Operator,
    elements: Mapping[str, int],
    reduce_bytes: int,
    *,
    fused: bool = True,
    adds: bool = True,
    experts: int = 1,
) -> Operator:
    """*operator* with a kernel behind its gradients for each weight that is hooked, of each of the rank's *experts*.

    *elements*: those of each weight on the rank. The kernel reads the gradient, reads the buffer if it *adds* to that,
    and writes it. Weights of products that run as one are one tensor, and so are their biases.
    """
    hooked, passed = hooked_weights(operator, fused=fused), COMPUTE_BYTES + (2 if adds else 1) * reduce_bytes
    if operator.rows == "routed":
        total = sum(elements.get(name, 0) for name in hooked)
        one = Kernel("elementwise", 0.0, 0.0, fixed_bytes=float(total / experts * passed), launches=experts)
        return replace(operator, backward_weight=(*operator.backward_weight, one)) if total else operator
    sizes = [elements.get(name, 0) for name in hooked]
    if _has_matmul(operator):
        biases = sum(elements.get(name, 0) for name in hooked if name.endswith("bias"))
        sizes = [sum(sizes) - biases, biases]
    added = tuple(Kernel("elementwise", n, float(n * passed)) for n in sizes if n)
    return replace(operator, backward_weight=operator.backward_weight + added)


def with_split(operators: Iterable[Operator], attention: GroupedAttention, workload: Workload) -> Iterator[Operator]:
    """*operators*, and behind the joined product of *attention*, as a rank holds it, the copies out of it."""
    one = float(workload.tokens * attention.head_dim * workload.activation_bytes)
    query, value = attention.heads * one, attention.kv_heads * one
    moved = (query, value) if attention.heads > attention.kv_heads else (value,)
    copies = tuple(Kernel("transpose", 0.0, 2 * size) for size in moved)
    joined, whole = Kernel("cat", 0.0, 2 * (query + 2 * value)), query + 2 * value
    for operator in operators:
        yield operator
        if operator.name == "qkv_proj":
            yield Operator("split_qkv", copies, (joined,), output_bytes=whole)


def unread_gradients(operators: Iterable[Operator]) -> list[float]:
    """Bytes of the unread gradients that stay on the rank, one for every shape of linear weight among *operators*."""
    shapes = {
        kernel.shape[:2]
        for operator in operators
        if operator.name not in _OWN_LINEAR
        for kernel in operator.backward_weight
        if kernel.kind in MATMULS
    }
    return sorted(float(COMPUTE_BYTES * rows * columns) for rows, columns in shapes)


def gather_buffer_bytes(workload: Workload, hidden: int) -> float:
    """Bytes of the buffer that a model *hidden* wide gathers the output layer's input into."""
    return float(workload.tokens * hidden * workload.activation_bytes)


def _has_matmul(operator: Operator) -> bool:
    return any(kernel.kind in MATMULS for kernel in operator.backward_weight)
