"""Moving tokens to their experts and back: permute, dispatch, expert order; then the same way home.

Permute and unpermute run over the rank's own rows, top_k a token, whose number is known here; what runs after the
dispatch is priced per routed row. The two wire operators have no kernels: one row is the expert width in the
activations' format, K3's latent 3,584 x 2 = 7,168 B (models_and_formulas section 3.8).
"""

from __future__ import annotations

from simulator.model.architecture import MixtureOfExperts
from simulator.model.operator import Kernel, Operator
from simulator.model.operators.lane import INT64_BYTES, Lane, Strided, chain, pointwise

SORT_LAUNCHES = 9
"""Kernels that sort positions before eager PyTorch adds rows with repeated positions in order (torch 2.11)."""


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
    backward: tuple[Kernel, ...] = (pointwise(copies + one, rows * width, kind="scatter"),)
    if tokens.eager:
        # A masked fill in place on the rows, and its gradient (clone, fill): for padding rows, but always run.
        b = tokens.element_bytes
        forward += chain(rows * width, Strided(2 * b))
        backward = (*chain(rows * width, 2 * b, Strided(2 * b)), *_ordered_add(tokens, width, rows))
    return Operator("permute", forward, backward, output_bytes=copies)


def _ordered_add(tokens: Lane, width: int, rows: float) -> tuple[Kernel, ...]:
    """Gradient of indexing: a zero fill, a sort of the positions, an ordered sum."""
    one, copies = tokens.tensor_bytes(width), rows * width * tokens.element_bytes
    return (
        pointwise(one, kind="copy"),
        pointwise(SORT_LAUNCHES * 2 * rows * INT64_BYTES, launches=SORT_LAUNCHES),
        pointwise(copies + 2 * one, rows * width, kind="scatter"),
    )


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
        forward: tuple[Kernel, ...] = (pointwise(copies + one, elements, kind="scatter"),)
        backward: tuple[Kernel, ...] = (pointwise(one + copies, kind="gather"),)
        return Operator("unpermute", forward, backward, output_bytes=one)
    if tokens.execution == "compiled":
        forward = (pointwise(2 * copies, elements), pointwise(copies + one, 2 * elements, kind="scatter"))
        backward = (
            pointwise(copies, kind="copy"),
            pointwise(one + copies, elements, kind="scatter"),
            pointwise(3 * copies, 3 * elements),
        )
        workspace = 0.0
    else:
        forward = (
            *chain(elements, 2 * b, Strided(2 * b), Strided(2 * b)),
            pointwise(2 * copies, kind="gather"),
            pointwise(copies + one, elements),
        )
        backward = (
            pointwise(copies, kind="copy"),
            pointwise(SORT_LAUNCHES * 2 * rows * INT64_BYTES, launches=SORT_LAUNCHES),
            pointwise(copies + one, elements, kind="scatter"),
            *chain(elements, Strided(2 * b), Strided(3 * b), b, 2 * b, Strided(2 * b)),
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
