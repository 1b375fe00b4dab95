"""Moving tokens to their experts and back: permute, dispatch, expert order; then the same way home.

Permute and unpermute run over the rank's own rows, top_k a token, whose number is known here; what runs after the
dispatch is priced per routed row. The two wire operators have no kernels: one row is the expert width in the
activations' format, K3's latent 3,584 x 2 = 7,168 B (models_and_formulas section 3.8).

Fused stacks gather both ways: each token knows its rows. Inductor's indexed kernels are bound by their addresses as
eager's strided ones (H200, 65,536 rows of 2,048: 160 to 186 us for 302 MB).

Transformer Engine's permute first makes a table of each token's rows among all experts, in three kernels, the last of
which sorts every token's experts; its sort of chunks makes a map of rows. The weights of rows travel beside them, since
the activation applies them. Where every expert takes as many rows from every rank, Megatron-LM transposes instead of
sorting chunks, knows all counts beforehand, and need not wait for them. Else it gathers every rank's counts of all
experts (`MoEAlltoAllTokenDispatcher.preprocess`), where torchtitan's dispatcher tells each rank those of its own.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2

from simulator.model.architecture import MixtureOfExperts
from simulator.model.operator import Kernel, Operator, Saved
from simulator.model.operators.lane import EXPERT_INPUT, FP32_BYTES, INT64_BYTES, Lane, Step, chain, pointwise

COMBINED = "combined"
"""Name of the tensor that the experts' rows of a token add up to."""
AROUND_EXCHANGE = ("count_rows", "permute", "dispatch_weights", "sort_by_expert", "sort_by_source", "unpermute")
"""Names of operators that count and move rows on a card, which ways of exchange do differently."""
_INT32_BYTES = 4
_MASK_BYTES = 1
_SORT_LAUNCHES = 4
"""Kernels of one radix sort of positions (torch 2.11)."""
_INDEX_LAUNCHES = 5
"""Small kernels that prepare the positions."""
_SORT_BYTES = 4 * INT64_BYTES
"""A position and where it stood, read and written by each kernel of a sort."""
_COUNTING = 7
"""Sums of counts by expert, rank and both, and four copies of them to the host, beside those of the choice."""
_NUMBERING = 4
"""Kernels over the tokens that came and the rank's own experts: choices to a table, two passes and a sort."""
_FINDING = (6, 9, 7, 6)
"""Kernels until the host reads a number, and behind the last one: a `nonzero` is three before it and four behind."""
_WEIGHTS_BACK = 4
_LAYOUT = 1
"""Kernels that count the tokens for each rank (`get_dispatch_layout`)."""


def dispatch_operators(
    component: MixtureOfExperts,
    tokens: Lane,
    routed: Lane,
    width: int,
    *,
    padded: bool = False,
    once: bool = False,
    framework: bool = False,
    masked: bool = True,
) -> tuple[Operator, ...]:
    """From tokens to rows that stand by expert on the expert's rank; *width* is the experts' width.

    *padded*: every expert takes as many rows from every rank. *once*: a token goes to a rank once; *framework*: whose
    rows are then found by PyTorch. *masked*: eager rows of no expert are zeroed, as Hugging Face does.
    """
    dispatch = Operator(
        "dispatch",
        (),
        rows="routed",
        output_bytes=routed.tensor_bytes(width),
        payload_bytes=routed.tensor_bytes(width),
        backward_payload_bytes=routed.tensor_bytes(width),
        counts=None if padded else "all_gather" if tokens.megatron else "all_to_all",
    )
    if once:
        beside = component.top_k * (FP32_BYTES + INT64_BYTES)
        sent = replace(dispatch, payload_bytes=dispatch.payload_bytes + beside)
        table = _framework_table() if framework else ()
        return _read_choice(component, tokens), sent, *table, _make_rows(routed, width)
    permute = _permute(tokens, width, own_rows(component, tokens), masked=masked)
    counting = tokens.megatron and not padded
    return (
        *((_count_rows(component),) if counting else ()),
        _with_row_table(permute, tokens, component.experts) if tokens.megatron else permute,
        dispatch,
        *((_row_weights(),) if tokens.megatron else ()),
        _expert_order(component, "sort_by_expert", routed, width, padded=padded, makes=EXPERT_INPUT),
    )


def combine_operators(
    component: MixtureOfExperts,
    tokens: Lane,
    routed: Lane,
    width: int,
    *,
    padded: bool = False,
    once: bool = False,
    masked: bool = True,
) -> tuple[Operator, ...]:
    """From the experts' rows back to one weighted sum a token; arguments as above."""
    combine = Operator(
        "combine",
        (),
        rows="routed",
        output_bytes=routed.tensor_bytes(width),
        payload_bytes=routed.tensor_bytes(width),
        backward_payload_bytes=routed.tensor_bytes(width),
    )
    if once:
        one = routed.tensor_bytes(width) * tokens.count / own_rows(component, tokens)
        return _sum_rows(routed, width), replace(combine, makes=COMBINED, output_bytes=one)
    return (
        _expert_order(component, "sort_by_source", routed, width, padded=padded),
        combine,
        _unpermute(tokens, width, own_rows(component, tokens), masked=masked),
    )


def own_rows(component: MixtureOfExperts, tokens: Lane) -> float:
    """Routed rows of the rank's tokens: top_k each, less the even share of experts that return their input."""
    return tokens.count * component.top_k * component.experts / (component.experts + component.zero_experts)


def _permute(tokens: Lane, width: int, rows: float, *, masked: bool) -> Operator:
    """Each token's vector into its rows; backward adds the rows' gradients up."""
    one, copies = tokens.tensor_bytes(width), rows * width * tokens.element_bytes
    forward: tuple[Kernel, ...] = (pointwise(one + copies, kind="gather"),)
    if tokens.eager:
        # A masked fill in place on the rows, and its gradient (clone, fill): for padding rows, but always run.
        b, mask = tokens.element_bytes, Step("masked_fill", 2 * tokens.element_bytes)
        forward += chain(rows * width, mask) if masked else ()
        unmasked = chain(rows * width, 2 * b, mask) if masked else ()
        backward = (*unmasked, *_ordered_add(rows, copies, one))
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


def _with_row_table(permute: Operator, tokens: Lane, experts: int) -> Operator:
    """*permute* behind the kernels that number the rows: two passes over experts by tokens, and a sort of each token's.

    The table, twice the experts and a count of int32 a token, is kept to find the way back.
    """
    wide = 2 ** ceil(log2(experts))
    stages = log2(wide) * (log2(wide) + 1) / 2
    number = pointwise(tokens.count * experts * (_MASK_BYTES + 3.0 * _INT32_BYTES), kind="scatter", launches=2)
    order = pointwise(tokens.count * wide * stages * 2 * _INT32_BYTES, kind="bitonic_sort")
    kept = Saved("row_table", float(tokens.count * (2 * experts + 1) * _INT32_BYTES))
    return replace(permute, forward=(number, order, *permute.forward), saved=(*permute.saved, kept))


def _count_rows(component: MixtureOfExperts) -> Operator:
    """What Megatron-LM sums before ranks tell each other how many rows will come, and copies to the host behind it."""
    moved = _COUNTING * 2.0 * component.experts * INT64_BYTES
    return Operator("count_rows", (pointwise(moved, launches=_COUNTING),), expert_parallel_only=True)


def _read_choice(component: MixtureOfExperts, tokens: Lane) -> Operator:
    """Each token's experts and their weights out of the table of all, and how many go where; backward into the table.

    The name is that of the stretch which Megatron-LM captures (`moe_preprocess`).
    """
    table, chosen = tokens.count * component.experts * FP32_BYTES, tokens.count * component.top_k
    moved = chosen * (FP32_BYTES + INT64_BYTES)
    forward = pointwise(table + moved, kind="topk"), pointwise(2.0 * moved, launches=_LAYOUT)
    backward = pointwise(table, kind="fill"), pointwise(moved + chosen * FP32_BYTES, kind="scatter")
    return Operator("preprocess", forward, backward, output_bytes=float(moved))


def _framework_table() -> tuple[Operator, ...]:
    """The table of the rank's experts by the tokens that came, as PyTorch makes it of indices and weights.

    Each choice that is not masked is found, repeated for its token and marked, the weights found again
    (`_DeepepManager._indices_to_multihot`): the host reads how many there are after the first, second and third part.
    """
    return tuple(
        Operator(
            f"find_rows_{part}",
            (pointwise(2.0 * launches * INT64_BYTES, launches=launches),),
            (pointwise(2.0 * _WEIGHTS_BACK * FP32_BYTES, launches=_WEIGHTS_BACK),) if part == len(_FINDING) else (),
            rows="routed",
            waits=part < len(_FINDING),
        )
        for part, launches in enumerate(_FINDING, start=1)
    )


def _make_rows(routed: Lane, width: int) -> Operator:
    """The rows of the tokens that came, by expert, and where each stands; backward the sum of each token's."""
    row = routed.tensor_bytes(width)
    numbering = pointwise(_NUMBERING * 2.0 * _INT32_BYTES, launches=_NUMBERING)
    return Operator(
        "sort_by_expert",
        forward=(numbering, pointwise(2 * row, kind="gather")),
        backward=(pointwise(2 * row, width, kind="gather"),),
        makes=EXPERT_INPUT,
        output_bytes=row,
        rows="routed",
    )


def _sum_rows(routed: Lane, width: int) -> Operator:
    """The sum of each token's rows on this rank, which the activation has weighted."""
    row = routed.tensor_bytes(width)
    kernel = pointwise(2 * row, width, kind="gather")
    back = pointwise(2 * row, kind="gather")
    return Operator("sort_by_source", (kernel,), (back,), output_bytes=row, rows="routed")


def _row_weights() -> Operator:
    """The exchange of the rows' weights, and of their gradients."""
    weight = float(FP32_BYTES)
    return Operator(
        "dispatch_weights",
        (),
        rows="routed",
        output_bytes=weight,
        payload_bytes=weight,
        backward_payload_bytes=weight,
    )


def _expert_order(
    component: MixtureOfExperts, name: str, routed: Lane, width: int, *, padded: bool, makes: str = ""
) -> Operator:
    """Rows arrive by source rank and are computed by expert: one copy each way.

    Megatron-LM copies chunks, where each row looks for its own, one for every expert, in the sums of their lengths; a
    framework reads rows in an order that it has found by sorting their experts.
    """
    framework = routed.execution != "fused" and not padded
    kernel = pointwise(
        2 * routed.tensor_bytes(width), kind="transpose" if padded else "gather" if framework else "copy"
    )
    find: tuple[Kernel, ...] = ()
    if routed.megatron and not padded:
        find = (pointwise(component.experts * _INT32_BYTES, kind="sort"),)
    elif framework and name == "sort_by_expert":
        find = (sort_positions(1.0),)
    return Operator(
        name,
        forward=(*find, kernel),
        backward=(kernel,),
        makes=makes,
        output_bytes=routed.tensor_bytes(width),
        rows="routed",
        expert_parallel_only=True,
    )


def _unpermute(tokens: Lane, width: int, rows: float, *, masked: bool) -> Operator:
    """Sum of a token's rows. A fused stack has weighted them inside the activation already."""
    b, elements, one = tokens.element_bytes, rows * width, tokens.tensor_bytes(width)
    copies = elements * b
    if tokens.execution == "fused":
        forward: tuple[Kernel, ...] = (pointwise(copies + one, elements, kind="gather"),)
        backward: tuple[Kernel, ...] = (pointwise(one + copies, kind="gather"),)
        return Operator("unpermute", forward, backward, makes=COMBINED, output_bytes=one)
    if tokens.execution == "compiled":
        forward = (pointwise(copies + one, 2 * elements, kind="scatter"),)
        backward = (
            pointwise(copies, kind="fill"),
            pointwise(one + copies, kind="broadcast"),
            pointwise(3 * copies, 3 * elements),
        )
        workspace = 0.0
    else:
        mask, product = (2 * b, Step("masked_fill", 2 * b)) if masked else (), Step("broadcast", 2 * b)
        forward = (
            *chain(elements, *mask, product),
            pointwise(2 * copies, kind="gather"),
            pointwise(copies + one, elements, kind="reduction"),
        )
        backward = (
            *chain(elements, product),
            *_ordered_add(rows, copies, copies),
            *chain(elements, product, 3 * b, Step("reduction", b), *mask),
        )
        workspace = 2 * copies
    kept = (tokens.saved("expert_output", width * rows / tokens.count),)
    return Operator(
        "unpermute",
        forward,
        backward,
        saved=kept,
        makes=COMBINED,
        output_bytes=one,
        workspace_bytes=workspace,
        backward_workspace_bytes=workspace,
    )
