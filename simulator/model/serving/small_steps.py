"""Small steps of a layer that engines run as one kernel each: a sum with the norm behind it, a router's choice.

A sub-layer's output is added to the residual stream by the norm that reads the sum next: four passes over the stream in
place of five, and one kernel less. That norm may be the next layer's; a layer counts its own two, so that the first
layer has a sum too many and the last norm none. Streams that are mixed or parallel are added as in training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from simulator.model.architecture import Layer, MixtureOfExperts
from simulator.model.operator import Kernel, Operator

_ADDS = frozenset({"mixer_add", "feed_forward_add"})
_NORMS = frozenset({"input_layernorm", "post_attention_layernorm"})


def in_one_kernel(operators: Iterable[Operator], layer: Layer) -> Iterator[Operator]:
    """*operators* of *layer* as an engine launches them."""
    plain = not layer.residual_blocks and layer.hyper_connections == 1
    for operator in operators:
        if plain and operator.name in _ADDS:
            continue
        if operator.name == "route" and isinstance(layer.feed_forward, MixtureOfExperts):
            yield _choice(operator, layer.feed_forward)
            continue
        adds = 2 * operator.output_bytes if plain and operator.name in _NORMS else 0.0
        yield replace(operator, forward=tuple(_norm(kernel, adds) for kernel in operator.forward))


def _norm(kernel: Kernel, added_bytes: float) -> Kernel:
    return replace(kernel, kind="served_norm", bytes=kernel.bytes + added_bytes) if kernel.kind == "norm" else kernel


def _choice(operator: Operator, part: MixtureOfExperts) -> Operator:
    """The first kernel of *operator* finds a token's best expert as often as it chooses one."""
    first, *others = operator.forward
    shape = (part.experts, part.top_k)
    return replace(operator, forward=(replace(first, kind="expert_choice", flops=0.0, shape=shape), *others))
