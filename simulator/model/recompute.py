"""Recomputation: which operators of a layer run again in its backward pass, and which tensors that brings back.

Three ways, as frameworks have them. Whole layers, every n-th of a stage: the layer's input is kept and all of it runs
again. Whole layers that keep some results (PyTorch's selective checkpoint): products and attention are not run again,
what lies between them is. Modules of Megatron-LM: parts of a layer run again, each just before the backward pass needs
it; a discarding module gives up its result as well, which later operators save, and a copy puts that back.

Of whole layers, results of operators named one by one may be kept instead, on the card or in host memory, as JAX's
`save_and_offload_only_these_names` does; they and the chain of routed rows that leads to them alone are not run again.

Sources: torchtitan, `apply_ac` and the policies of its models (2024 to 2026); PyTorch, `torch.utils.checkpoint`;
Megatron-LM, `CheckpointFunction` and `CheckpointWithoutOutput`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from simulator.model.operator import Operator, Saved, keep_once
from simulator.model.operators.attention_core import ATTENTION_STATISTICS, GENERATIONS
from simulator.model.operators.lane import FEED_FORWARD_INPUT, MIXER_INPUT, pointwise

Keep = Literal["alternate_matmuls", "matmuls"]
Module = Literal["core_attn", "mla_up_proj", "moe_act", "layernorm", "mlp", "moe", "shared_experts"]

_RESIDUALS = frozenset(f"{part}_{name}" for part in ("mixer", "feed_forward") for name in ("residual", "mixed", "read"))
_INPUTS: dict[str, frozenset[str]] = {
    "core_attn": frozenset({"query", "key", "value"}),
    "mla_up_proj": frozenset({MIXER_INPUT, "query_latent", "key_latent"}),
    "moe_act": frozenset({"expert_hidden"}),
    "layernorm": _RESIDUALS,
    "mlp": _RESIDUALS,
    "moe": frozenset({FEED_FORWARD_INPUT}),
    "shared_experts": frozenset({FEED_FORWARD_INPUT}),
}
"""What a module reads, and keeps for running again."""
_DISCARDED: dict[str, frozenset[str]] = {
    "mla_up_proj": frozenset({"query", "key", "value"}),
    "moe_act": frozenset({"experts_activated"}),
    "layernorm": frozenset({MIXER_INPUT, FEED_FORWARD_INPUT}),
}
"""Results of discarding modules, which their readers save."""
JOINS = frozenset(f"{part}_{name}" for part in ("mixer", "feed_forward") for name in ("add", "write"))
"""Operators behind a sub-layer."""
LAYER_INPUT = "layer_input"
"""Stands among names of operators for what comes into a layer."""
_ROUTER = "router"
"""torchtitan always runs the router's product again, and does not count it among the alternate ones."""


@dataclass(frozen=True, slots=True)
class Recompute:
    """What of a stage's layers is recomputed: one of three ways, or nothing."""

    every: int = 0
    """Each layer of a stage whose number, from 1, this divides; 0: none as a whole."""
    keep: Keep | None = None
    """All layers, but for these results."""
    modules: tuple[Module, ...] = ()
    results: frozenset[str] = frozenset()
    """Names of operators of layers recomputed whole whose results stay on the card instead of running again."""
    away: frozenset[str] = frozenset()
    """The same with results in host memory meanwhile; of layers that keep all, operators whose saved tensors are
    there. `LAYER_INPUT` is that of a layer recomputed whole."""

    def of_layer(self, position: int) -> Recompute:
        """What holds for the layer at *position*, from 0, of its stage."""
        if not self.every:
            return self
        whole = (position + 1) % self.every == 0
        return replace(self, every=1 if whole else 0)

    @property
    def runs_again(self) -> bool:
        """Whether anything runs again."""
        return bool(self.every or self.keep or self.modules)

    def __str__(self) -> str:
        if self.every:
            return "full" if self.every == 1 else f"every {self.every}"
        return self.keep or "+".join(self.modules) or "none"

    @property
    def discarded(self) -> frozenset[str]:
        """Names of the tensors that are given up as results of a module, though later operators save them."""
        return frozenset().union(*(_DISCARDED.get(module, frozenset()) for module in self.modules))


NOTHING, WHOLE = Recompute(), Recompute(every=1)


@dataclass(frozen=True, slots=True)
class Stack:
    """What decides how a layer runs again, beside its operators."""

    stops_early: bool
    """PyTorch's checkpoint ends once the last tensor that the backward pass needs is there; Megatron-LM's runs on."""
    compiled: bool
    """A compiler keeps no result that the backward pass has no use for."""
    exchanges: bool
    """Whether experts are spread over ranks, so that rows go to them and come home."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Operators that run again one after the other, by position in their layer."""

    positions: tuple[int, ...]
    before: int
    """They run before the backward pass of the operator at this position."""
    results: frozenset[int] = frozenset()
    """Those of *positions* whose results were kept, so that they do not run."""
    loose: frozenset[int] = frozenset()
    """Those of *results* that no operator saves: they are kept for the stretch alone."""
    stops_early: bool = False
    chain: frozenset[int] = frozenset()
    """Those of *positions* each of which only the next reads, so that it need not run where that does not."""
    holds_result: bool = False
    """Whether what it made is held until the backward pass is through it, as Megatron-LM's checkpoints do."""
    restore: Operator | None = None
    """The copy that puts a discarded result back; *saved* are the tensors."""
    restored_until: int = 0
    """The operator with whose backward pass the last use of those tensors ends."""

    @property
    def cut(self) -> tuple[frozenset[int], frozenset[int]]:
        """*results* and *chain*."""
        return self.results, self.chain

    def moved(self, by: int) -> Stretch:
        """The same where *by* operators come before."""
        positions = tuple(number + by for number in self.positions)
        results, loose, chain = (
            frozenset(number + by for number in numbers) for numbers in (self.results, self.loose, self.chain)
        )
        return replace(
            self,
            positions=positions,
            before=self.before + by,
            results=results,
            loose=loose,
            chain=chain,
            restored_until=self.restored_until + by,
        )


@dataclass(frozen=True, slots=True)
class Away:
    """What of a layer is in host memory between its passes."""

    steps: frozenset[int] = frozenset()
    """Positions of operators all of whose saved tensors are."""
    loose: frozenset[int] = frozenset()
    """Positions of those whose results are, which no operator saves."""
    layer_input: bool = False


NOT_AWAY = Away()


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The operators of a layer, and those of them that run again."""

    operators: tuple[Operator, ...]
    stretches: tuple[Stretch, ...] = ()
    """In the order in which they run."""
    keeps_input: bool = False
    """Whether the layer's input is kept, for running all of it again."""
    away: Away = field(default_factory=lambda: NOT_AWAY)
    """What of it is in host memory between its passes."""

    @property
    def stops_early(self) -> bool:
        """Whether running again ends before the last operator that keeps anything."""
        return any(stretch.stops_early for stretch in self.stretches)

    def runs_again(self, position: int) -> bool:
        """Whether a stretch passes the operator at *position*."""
        return any(position in stretch.positions for stretch in self.stretches)


def plan_layer(parts: Iterable[Iterable[Operator]], recompute: Recompute, stack: Stack) -> LayerPlan:
    """The plan of a layer under what *recompute* says of it: of its operators, each listed with all that it saves.

    A layer is one part; a multi-token-prediction module is several, whose tensors have names of their own.
    """
    if recompute.modules:
        return _sent_away(_joined([_by_module(tuple(part), recompute.modules) for part in parts]), recompute.away)
    once = tuple(operator for part in parts for operator in keep_once(part))
    if not recompute.runs_again:
        return _sent_away(LayerPlan(once), recompute.away)
    results = frozenset(_results(once, recompute.keep, stack)) if recompute.keep else frozenset[int]()
    results |= {n for n, operator in enumerate(once) if operator.name in recompute.results | recompute.away}
    bare = [replace(op, saved=(), restored=op.saved) for op in once]
    planned, loose = _with_results(bare, results)
    stretch = Stretch(tuple(range(len(once))), len(once) - 1, results, loose, stops_early=stack.stops_early)
    if recompute.every:
        stretch = replace(stretch, chain=frozenset(n for n, operator in enumerate(once) if _in_chain(operator)))
    return LayerPlan(planned, (stretch,), keeps_input=True, away=_away_of(once, planned, loose, recompute.away))


def _sent_away(plan: LayerPlan, names: frozenset[str]) -> LayerPlan:
    """*plan* with what its operators of these *names* save in host memory."""
    steps = frozenset(n for n, operator in enumerate(plan.operators) if operator.name in names and operator.saved)
    return replace(plan, away=Away(steps))


def _away_of(
    once: tuple[Operator, ...], planned: tuple[Operator, ...], loose: frozenset[int], names: frozenset[str]
) -> Away:
    """Where the results of operators of these *names* are saved: what one operator saves travels together."""
    named = {n for n, operator in enumerate(once) if operator.name in names}
    made = {once[n].makes for n in named}
    steps = frozenset(n for n, operator in enumerate(planned) if any(t.name in made for t in operator.saved))
    return Away(steps, loose & named, LAYER_INPUT in names)


def _in_chain(operator: Operator) -> bool:
    """Whether it is one of those on routed rows, each of which is read by the next alone."""
    return (
        operator.rows == "routed" or operator.name == "unpermute" or (operator.name == "permute" and not operator.saved)
    )


def _joined(plans: Iterable[LayerPlan]) -> LayerPlan:
    """*plans* one after the other as one."""
    operators: tuple[Operator, ...] = ()
    stretches: list[Stretch] = []
    for plan in plans:
        start = len(operators)
        operators += plan.operators
        stretches += [stretch.moved(start) for stretch in plan.stretches]
    return LayerPlan(operators, tuple(stretches))


def keeps_result(operator: Operator) -> bool:
    """Whether the result of *operator* is a tensor that it or a later operator saves as it is."""
    return bool(operator.makes)


def needs_local_keys(recompute: Recompute) -> bool:
    """Whether modules are recomputed that read or make the queries, keys and values that attention keeps."""
    return "core_attn" in recompute.modules or "mla_up_proj" in recompute.modules


def modules_of(operators: Iterable[Operator]) -> frozenset[str]:
    """The modules of Megatron-LM among *operators*."""
    return frozenset(module for operator in operators for module in operator.modules)


def _results(operators: tuple[Operator, ...], keep: Keep, stack: Stack) -> Iterator[int]:
    """Positions of the operators whose results a policy keeps: attention, products, scatters, expert exchanges."""
    products = 0
    last = max((n for n, operator in enumerate(operators) if operator.saved), default=0)
    for number, operator in enumerate(operators):
        chosen = _always_kept(operator, stack)
        if _is_product(operator, keep):
            products += 1
            chosen = keep == "matmuls" or products % 2 == 1
        if chosen and not (stack.compiled and number >= last):
            yield number


def _always_kept(operator: Operator, stack: Stack) -> bool:
    if operator.name in ("dispatch", "combine"):
        return stack.exchanges
    scatters = any(c.operation == "reduce_scatter" and c.axis == "tp" for c in operator.forward_collectives)
    return scatters or any(kernel.kind in ("attention", *GENERATIONS) for kernel in operator.forward)


def _is_product(operator: Operator, keep: Keep) -> bool:
    """Whether it is one of the products that *keep* chooses from: with a bias it is another operator to PyTorch."""
    biased = any(weight.endswith("bias") for weight in operator.weights)
    plain = any(kernel.kind == "gemm" for kernel in operator.forward) and bool(operator.weights)
    return plain and operator.name != _ROUTER and not (biased and keep == "alternate_matmuls")


def _with_results(operators: list[Operator], results: frozenset[int]) -> tuple[tuple[Operator, ...], frozenset[int]]:
    """Count kept *results* that an operator saves as saved by it; return with them those that none does."""
    loose = set()
    for number in sorted(results):
        own = _saves_itself(operators[number].makes, operators[number].restored)
        if own:
            for name in own:
                operators[number] = _keep_part(operators[number], name, float("inf"))
            continue
        name, size = operators[number].makes, operators[number].output_bytes
        readers = [
            n for n, op in enumerate(operators) if name and n > number and any(t.name == name for t in op.restored)
        ]
        if readers:
            operators[readers[0]] = _keep_part(operators[readers[0]], name, size)
        else:
            loose.add(number)
    return tuple(operators), frozenset(loose)


def _saves_itself(makes: str, saved: tuple[Saved, ...]) -> list[str]:
    """The names of what an operator that *makes* a tensor has *saved* of its own result, if it saves that itself."""
    names = {tensor.name for tensor in saved}
    return [name for name in (makes, ATTENTION_STATISTICS) if name in names] if makes in names else []


def _keep_part(operator: Operator, name: str, size: float) -> Operator:
    """*operator* that saves *size* bytes, or all, of a tensor that it would have restored."""
    (whole,) = (tensor for tensor in operator.restored if tensor.name == name)
    part = min(size, whole.bytes)
    rest = (replace(whole, bytes=whole.bytes - part),) if part < whole.bytes else ()
    others = tuple(tensor for tensor in operator.restored if tensor.name != name)
    return replace(operator, saved=(*operator.saved, Saved(name, part)), restored=(*others, *rest))


@dataclass(frozen=True, slots=True)
class _Region:
    """The operators of one module, by position."""

    module: Module
    positions: tuple[int, ...]
    discards: frozenset[str] = frozenset()


def _by_module(operators: tuple[Operator, ...], modules: tuple[Module, ...]) -> LayerPlan:
    regions = [region for module in modules for region in _regions(operators, module)]
    gone = frozenset(name for region in regions for name in region.discards)
    kept, again = [], []
    for number, operator in enumerate(operators):
        within = [region for region in regions if number in region.positions]
        made = {t.name for t in operator.saved if any(t.name not in _INPUTS[r.module] for r in within)}
        again.append(replace(operator, saved=tuple(t for t in operator.saved if t.name in made)))
        own = (t for t in operator.saved if t.name not in made | gone)
        # A checkpoint keeps what it reads, whichever weights are trained.
        kept.append(replace(operator, saved=tuple(Saved(t.name, t.bytes) if within else t for t in own)))
    planned = [
        replace(first, restored=second.saved) for first, second in zip(keep_once(kept), keep_once(again), strict=True)
    ]
    stretches = [_stretch(operators, region) for region in regions]
    return LayerPlan(tuple(planned), tuple(sorted(stretches, key=lambda s: (-s.before, s.positions))))


def _regions(operators: tuple[Operator, ...], module: Module) -> Iterator[_Region]:
    """The regions of *module*: each norm is one of its own, all other operators of a module are one."""
    positions = tuple(n for n, operator in enumerate(operators) if module in operator.modules)
    gone = _DISCARDED.get(module, frozenset())
    if module == "layernorm":
        yield from (_Region(module, (n,), gone & {operators[n].makes}) for n in positions)
    elif positions:
        yield _Region(module, positions, gone)


def _stretch(operators: tuple[Operator, ...], region: _Region) -> Stretch:
    """When *region* runs again: before its own backward pass, or before that of those who read what it discarded.

    A norm runs again before the backward pass of the whole sub-layer behind it.
    """
    if not region.discards:
        # Attention saves what it returns; of others the result is one more tensor.
        return Stretch(region.positions, region.positions[-1], holds_result=region.module != "core_attn")
    readers = {
        number: [tensor for tensor in operator.saved if tensor.name in region.discards]
        for number, operator in enumerate(operators)
        if number not in region.positions and any(tensor.name in region.discards for tensor in operator.saved)
    }
    once = keep_once(replace(operators[number], saved=tuple(saved)) for number, saved in readers.items())
    tensors = tuple(tensor for operator in once for tensor in operator.saved)
    size = sum(tensor.bytes for tensor in tensors)
    restore = Operator(
        "restore",
        forward=(pointwise(2 * size, kind="copy", launches=len(tensors)),),
        saved=tensors,
        output_bytes=size,
        rows=operators[min(readers)].rows,
    )
    last = max(readers)
    if region.module == "layernorm":
        last = next(n for n in range(last, len(operators)) if operators[n].name in JOINS) - 1
    return Stretch(region.positions, last, holds_result=True, restore=restore, restored_until=min(readers))
