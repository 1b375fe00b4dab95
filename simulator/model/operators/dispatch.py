"""Moving tokens to their experts and back: permute, dispatch, expert order; then the same way home.

Permute and unpermute run over the rank's own rows, top_k a token, whose number is known here; what runs after the
dispatch is priced per routed row. The two wire operators have no kernels: one row is the expert width in the
activations' format, K3's latent 3,584 x 2 = 7,168 B (models_and_formulas section 3.8).

Fused stacks gather both ways: each token knows its rows. Inductor's indexed kernels are bound by their addresses as
eager's strided ones (H200, 65,536 rows of 2,048: 160 to 186 us for 302 MB).
"""

from __future__ import annotations

from simulator.model.architecture import MixtureOfExperts
from simulator.model.operator import Kernel, Operator
from simulator.model.operators.lane import INT64_BYTES, Lane, Step, chain, pointwise

_SORT_LAUNCHES = 4
"""Kernels of one radix sort of positions (torch 2.11)."""
_INDEX_LAUNCHES = 5
"""Small kernels that prepare the positions."""
_SORT_BYTES = 4 * INT64_BYTES
"""A position and where it stood, read and written by each kernel of a sort."""


def dispatch_operators(component: MixtureOfExperts, tokens: Lane, routed: Lane, width: int) -> tuple[Operator, ...]:
    """From tokens to rows that stand by expert on the expert's rank; *width* is the experts' width."""
    return (
        _permute(tokens, width, own_rows(component, tokens)),
        Operator(
            "dispatch",
            (),
            rows="routed",
            output_bytes=routed.tensor_bytes(width),
            payload_bytes=routed.tensor_bytes(width),
            backward_payload_bytes=routed.tensor_bytes(width),
        ),
        _expert_order("sort_by_expert", routed, width),
    )


def combine_operators(component: MixtureOfExperts, tokens: Lane, routed: Lane, width: int) -> tuple[Operator, ...]:
    """From the experts' rows back to one weighted sum a token."""
    return (
        _expert_order("sort_by_source", routed, width),
        Operator(
            "combine",
            (),
            rows="routed",
            output_bytes=routed.tensor_bytes(width),
            payload_bytes=routed.tensor_bytes(width),
            backward_payload_bytes=routed.tensor_bytes(width),
        ),
        _unpermute(tokens, width, own_rows(component, tokens)),
    )


def own_rows(component: MixtureOfExperts, tokens: Lane) -> float:
    """Routed rows of the rank's tokens: top_k each, less the even share of experts that return their input."""
    return tokens.count * component.top_k * component.experts / (component.experts + component.zero_experts)


def _permute(tokens: Lane, width: int, rows: float) -> Operator:
    """Each token's vector into its rows; backward adds the rows' gradients up."""
    one, copies = tokens.tensor_bytes(width), rows * width * tokens.element_bytes
    forward: tuple[Kernel, ...] = (pointwise(one + copies, kind="gather"),)
    if tokens.eager:
        # A masked fill in place on the rows, and its gradient (clone, fill): for padding rows, but always run.
        b, masked = tokens.element_bytes, Step("masked_fill", 2 * tokens.element_bytes)
        forward += chain(rows * width, masked)
        backward = (*chain(rows * width, 2 * b, masked), *_ordered_add(rows, copies, one))
    elif tokens.execution == "compiled":
        backward = (pointwise(one, kind="fill"), pointwise(copies + one, rows * width, kind="broadcast"))
    else:
        backward = (pointwise(copies + one, rows * width, kind="gather"),)
    return Operator("permute", forward, backward, output_bytes=copies)


def sort_positions(rows: float, launches: int = _SORT_LAUNCHES) -> Kernel:
    """The radix sort of *rows* int64 positions."""
    return pointwise(launches * rows * _SORT_BYTES, kind="sort", launches=launches)


def ordered_positions(rows: float) -> tuple[Kernel, ...]:
    """What PyTorch runs before it adds *rows* rows in the order of their targets."""
    return pointwise(_INDEX_LAUNCHES * 2 * rows * INT64_BYTES, launches=_INDEX_LAUNCHES), sort_positions(rows)


def _ordered_add(rows: float, copies: float, target: float) -> tuple[Kernel, ...]:
    """Gradient of indexing: a zero fill of *target* bytes, a sort, a sum of *rows* rows that hold *copies* bytes.

    The sum takes one row after the other, and reads and writes its target's row for each.
    """
    return pointwise(target, kind="fill"), *ordered_positions(rows), pointwise(3 * copies, kind="scatter_put")


def _expert_order(name: str, routed: Lane, width: int) -> Operator:
    """Rows arrive by source rank and are computed by expert: one copy each way."""
    kernel = pointwise(2 * routed.tensor_bytes(width), kind="copy")
    return Operator(
        name, (kernel,), (kernel,), output_bytes=routed.tensor_bytes(width), rows="routed", expert_parallel_only=True
    )


def _unpermute(tokens: Lane, width: int, rows: float) -> Operator:
    """Sum of a token's rows. A fused stack has weighted them inside the activation already."""
    b, elements, one = tokens.element_bytes, rows * width, tokens.tensor_bytes(width)
    copies = elements * b
    if tokens.execution == "fused":
        forward: tuple[Kernel, ...] = (pointwise(copies + one, elements, kind="gather"),)
        backward: tuple[Kernel, ...] = (pointwise(one + copies, kind="gather"),)
        return Operator("unpermute", forward, backward, output_bytes=one)
    if tokens.execution == "compiled":
        forward = (pointwise(copies + one, 2 * elements, kind="scatter"),)
        backward = (
            pointwise(copies, kind="fill"),
            pointwise(one + copies, kind="broadcast"),
            pointwise(3 * copies, 3 * elements),
        )
        workspace = 0.0
    else:
        masked, product = Step("masked_fill", 2 * b), Step("broadcast", 2 * b)
        forward = (
            *chain(elements, 2 * b, masked, product),
            pointwise(2 * copies, kind="gather"),
            pointwise(copies + one, elements, kind="reduction"),
        )
        backward = (
            *chain(elements, product),
            *_ordered_add(rows, copies, copies),
            *chain(elements, product, 3 * b, Step("reduction", b), 2 * b, masked),
        )
        workspace = 2 * copies
    kept = (tokens.saved("expert_output", width * rows / tokens.count),)
    return Operator(
        "unpermute",
        forward,
        backward,
        saved=kept,
        output_bytes=one,
        workspace_bytes=workspace,
        backward_workspace_bytes=workspace,
    )
