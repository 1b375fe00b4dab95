"""Operators: what one module computes on one rank's tokens, as kernels with FLOPs and bytes.

An operator knows no hardware. Its kernels carry arithmetic, memory traffic and shape; the `program` floor prices them.
FLOPs count a multiply-add as two. Bytes count each operand once (perfect reuse inside a kernel), which is a lower
bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Literal

from simulator.model.float8 import Float8

Execution = Literal["eager", "compiled", "fused"]
"""How operators run: framework kernels one by one, element-wise ones fused by a compiler, or a hand-fused stack."""

Attention = Literal["flash", "flash2", "flash_triton", "unfused"]
"""Whether softmax attention is one kernel, and of which generation, or products and a softmax over scores in memory."""

CoreKernels = Literal["fused", "partly_fused", "small_operators"]
"""How the cores of Kimi delta attention and of sparse attention run: a few hand-written kernels, a published chain of
kernels with results in memory between them, or framework operators one by one."""

Context = Literal["all_gather", "all_to_all", "ring"]
"""How ranks that split sequences attend over all of them: keys and values gathered at once, heads exchanged for
sequence, or keys and values passed around while the ranks attend to what they have."""

Rows = Literal["tokens", "routed"]
"""Whether costs are totals over the rank's tokens, or per routed row (one token sent to one expert)."""


OVERHEADS = frozenset({"rescale", "part_copy"})
"""Kinds whose time is arithmetic that no model asks for: scales in fp64, and looking for an element in its part."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel launch, or *launches* equal ones that share *flops* and *bytes*.

    With `rows == "routed"` of the owning operator, *flops* and *bytes* are per routed row, and *fixed_bytes* (weights
    of the experts on the rank: per expert) does not depend on rows.
    """

    kind: str
    """Which efficiency curve prices it: gemm, grouped_gemm, attention, scan, conv; kda (a chain's kernels),
    kda_prepare, kda_scan, kda_local; indexer, indexer_choice (with the choice of keys), sparse_attention, flash_mla (a
    published forward pass of it); as inference engines run them decode_attention, decode_latent (absorbed), state_step,
    served_gemm, served_experts, served_norm, expert_choice; vector_products (a product of two vectors each, batched);
    elementwise (contiguous), situ (an activation that its special functions bound), broadcast (strided or broadcast
    operands), cast_up, cast_down, copy, transpose, cat, fill, masked_fill, reduction, norm, softmax, loss; gather,
    scatter, scatter_put, topk, sort, bitonic_sort; around fp8 products amax, amax_compiled (the largest absolute
    value), quantize, quantize_rows, quantize_columns, quantize_blocks, quantize_transposed (casts from bf16) and
    rescale (scales worked out anew for every element); part_copy (a compiled copy from or to the parts of tp ranks).
    FLOPs of the last two, `OVERHEADS`, are no model's."""
    flops: float
    bytes: float
    shape: tuple[int, ...] = ()
    """(m, n, k) of a gemm; (n, k) of a grouped gemm, whose m is the rows of each expert; (heads, head_dim, length) of
    attention."""
    dtype: str = "bf16"
    fixed_bytes: float = 0.0
    launches: int = 1
    each: bool = False
    """Whether it is launched for each expert of the rank where their products are."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that autograd keeps from the forward to the backward pass.

    *name* says which tensor it is within the layer: two operators that keep the same one name it alike, and `keep_once`
    leaves it with the first of them.
    """

    name: str
    bytes: float
    needed_for: Literal["input_gradient", "weight_gradient"] = "input_gradient"
    """A tensor needed for a weight's gradient only is not kept when the weight is frozen and has no adapter."""
    weights: tuple[str, ...] = ()
    """With `needed_for == "weight_gradient"`: the weights that need it. It is kept when any one of them is trained."""
    nodes: int = 1
    """Steps of the forward pass that keep it, each for its own gradient: they share one tensor on the device."""


@dataclass(frozen=True, slots=True)
class Collective:
    """Communication among the ranks of one *axis* on which one tensor or state is split."""

    operation: Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send", "relay"]
    """send: each rank to the next, all at once; relay: from rank to rank in turn, each waiting for the one before."""
    axis: Literal["tp", "cp", "etp"]
    bytes: float
    """The whole buffer that a rank holds after a gather, or before a reduction or an exchange; of a send or relay, one
    hop. Per routed row where the operator's rows are."""
    weights: tuple[str, ...] = ()
    """Not empty: needed only for the gradients of these weights, so that it is left out where none is trained."""
    units: int | None = None
    """Compute units that it runs on, none for copy engines; None: the library's channels."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One step of a module's forward pass, with what its backward pass runs."""

    name: str
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...] = ()
    """Gradient of the inputs."""
    backward_weight: tuple[Kernel, ...] = ()
    """Gradient of the weights: run only when they are trained."""
    weights: tuple[str, ...] = ()
    """Names of the parameters used, within the layer."""
    reads: str = ""
    """Linear layers whose products may run in fp8: the name of the tensor that they multiply. Empty elsewhere."""
    saved: tuple[Saved, ...] = ()
    """Kept from the forward to the backward pass."""
    restored: tuple[Saved, ...] = ()
    """Not kept, but there again for the backward pass, because operators ran again (`recompute`)."""
    modules: tuple[str, ...] = ()
    """Megatron-LM's names of the submodules it is part of, among those that can be recomputed alone."""
    makes: str = ""
    """The saved tensor that its result is, or is a part of; empty: its result is not saved as it is."""
    output_bytes: float = 0.0
    """Size of the result (per routed row where rows == "routed")."""
    workspace_bytes: float = 0.0
    """Temporaries alive during the forward kernels only."""
    backward_workspace_bytes: float = 0.0
    rows: Rows = "tokens"
    payload_bytes: float = 0.0
    """Bytes that one routed row puts on the wire, for the expert dispatch and combine; 0 elsewhere. Other communication
    is in the collectives."""
    backward_payload_bytes: float = 0.0
    """The same of the row's gradient on its way back."""
    expert_parallel_only: bool = False
    """True for a copy that runs only where the experts are spread over several ranks."""
    counts: Literal["all_to_all", "all_gather"] | None = None
    """How ranks tell each other what they have counted, which the host waits for, to know how much there is to move;
    None where it knows that."""
    waits: bool = False
    """Whether the host waits for its forward kernels, which tell it how large the next tensors are."""
    forward_collectives: tuple[Collective, ...] = ()
    """In order, after the forward kernels."""
    backward_collectives: tuple[Collective, ...] = ()
    forward_beside: tuple[Collective, ...] = ()
    """The first runs beside the first forward kernel, and so on; the next kernel waits for both."""
    backward_beside: tuple[Collective, ...] = ()
    parts: int = 1
    """Parts of the rows, forward, whose products run beside transfers of other parts: its collective is of one."""
    own_part: bool = False
    """Whether a rank has or keeps one of those parts, so that it is not sent."""
    parts_back: int = 1
    own_part_back: bool = False
    """The same of the gradients of inputs."""
    beside_gradients: tuple[Collective, ...] = ()
    """Of a product: the last moves the gradient of its input beside the gradient of its weights; one before that brings
    what the latter reads, beside the former."""
    gradient_in_place: bool = False
    """The gradient of its input overwrites the tensor that it saves."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What the ranks that share one micro-batch feed to the model, and how they split each layer among them.

    Counts that do not divide are rounded up: they are those of the fullest rank.
    """

    sequence_lengths: tuple[int, ...]
    """Length in tokens of each sequence, whole; attention never crosses two of them."""
    execution: Execution = "fused"
    attention: Attention = "flash"
    core_kernels: CoreKernels | None = None
    """None: as *execution*, fused or partly fused."""
    dropout: bool = False
    """Whether the embedding, attention's probabilities and results of sub-layers are dropped out; flash kernels draw
    their own."""
    activation_bytes: int = 2
    """Bytes of one activation element (bf16: 2)."""
    float8: Float8 | None = None
    """How linear layers multiply in fp8; None: they do not."""
    image_patches: tuple[int, ...] = field(default=())
    """Patches of each image for the vision tower, before merging."""
    tp: int = 1
    """Ranks that split heads, intermediate widths and the vocabulary."""
    cp: int = 1
    """Ranks that split each sequence."""
    context: Context = "all_gather"
    """How those ranks attend over whole sequences."""
    etp: int = 1
    """Ranks that split each routed expert's intermediate width."""
    megatron: bool = False
    """Whether the hand-fused stack is Megatron-LM's on Transformer Engine: what runs where stacks differ."""
    framework_table: bool = False
    """Whether the rows of tokens that came are then found by PyTorch's kernels, not by a fused one."""
    spread_experts: bool = False
    """Whether routed experts lie on several ranks, where no row is without an expert; Hugging Face's, all on one, mask
    such rows whether there are any or not."""
    sent_once: bool = False
    """Whether a token goes once to each rank that holds experts of it, where its rows are made and summed."""
    fused_experts: bool = False
    """Whether the products of routed experts make the activation, its gradient and their fp8 copies themselves."""
    fused_router: bool = False
    """Whether Megatron-LM's choice of experts and its balancing loss are Transformer Engine's fused kernels."""
    padded_experts: bool = False
    """Whether every expert takes as many rows from every rank, whatever the router chose."""
    overlap: bool = False
    """Whether transfers between tp ranks run beside products, where the stack can."""
    loss_chunk_tokens: int = 1024
    """Tokens that a chunked loss takes at a time."""
    sequence_parallel: bool = True
    """With tp > 1: norms, residuals and routers run on tokens / tp, between a gather and a scatter around each split
    part (Korthikanti et al., 2022); False: on all tokens, with all-reduces in their place."""

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch on this rank: those that it shares with the other tp ranks."""
        return ceil(sum(self.sequence_lengths) / self.cp)

    @property
    def core(self) -> CoreKernels:
        """How those cores run."""
        return self.core_kernels or ("fused" if self.execution == "fused" else "partly_fused")

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence on this rank."""
        return ceil(max(self.sequence_lengths) / self.cp)

    @property
    def own_tokens(self) -> int:
        """Tokens whose residual stream this rank holds."""
        return ceil(self.tokens / self.tp) if self.sequence_parallel else self.tokens

    @property
    def sent_tokens(self) -> int:
        """Tokens that this rank sends to experts: its share of those that the tp ranks have in common."""
        return ceil(self.tokens / self.tp)

    @property
    def overlaps_tensor_parallel(self) -> bool:
        """Whether transfers between tp ranks run beside products: compiled layers, or Transformer Engine's."""
        return self.overlap and self.tp > 1 and (self.execution == "compiled" or self.megatron)

    @property
    def gathers_again(self) -> bool:
        """Whether a tensor that tp ranks gathered is not kept, but gathered again for the gradient of weights."""
        return self.execution == "fused"

    @property
    def causal_pairs(self) -> float:
        """Query-key pairs of causal attention on this rank: L (L + 1) / 2 a sequence, shared evenly by the cp ranks.

        Even shares are what a rank gets that takes one piece from the front and its mirror image from the back.
        """
        return sum(n * (n + 1) // 2 for n in self.sequence_lengths) / self.cp


def part_of(module: str, operators: Iterable[Operator]) -> Iterator[Operator]:
    """The *operators* as part of *module*."""
    return (replace(operator, modules=(*operator.modules, module)) for operator in operators)


def keep_once(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """The *operators* with each saved tensor listed once: at the first that keeps it, for the sake of all that do."""
    operators = tuple(operators)
    needs: dict[str, Saved] = {}
    for tensor in (tensor for operator in operators for tensor in operator.saved):
        known = needs.get(tensor.name)
        needs[tensor.name] = tensor if known is None else _joined(known, tensor)
    return tuple(
        replace(operator, saved=tuple(needs.pop(t.name) for t in operator.saved if t.name in needs))
        for operator in operators
    )


def _joined(first: Saved, second: Saved) -> Saved:
    """One tensor for two readers: kept for an input's gradient if either needs that, else for both their weights."""
    size, nodes = max(first.bytes, second.bytes), first.nodes + second.nodes
    if "input_gradient" in (first.needed_for, second.needed_for):
        return Saved(first.name, size, nodes=nodes)
    weights = tuple(dict.fromkeys(first.weights + second.weights))
    return Saved(first.name, size, "weight_gradient", weights, nodes)
