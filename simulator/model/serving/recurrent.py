"""Mixers with a recurrent state: prompts go through the chunked kernels, decoding sequences take one step each.

A step reads and writes the whole state of a sequence, which is all of its time: for Kimi delta attention about 7 d^2
FLOPs a head for 8 d^2 bytes (models_and_formulas section 3.6). The chunks of a prompt begin from the state that the
chunk before left; that is read and written once more, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import GatedDeltaNet, KimiDeltaAttention, Mamba2
from simulator.model.operator import Kernel, Operator, Workload
from simulator.model.operators.layers import component_operators
from simulator.model.parameters import mixer_cache
from simulator.model.serving.iteration import Iteration

Recurrent = KimiDeltaAttention | GatedDeltaNet | Mamba2
_FLOPS_PER_BYTE = 7 / 8
"""Of a step: 7 d^2 FLOPs for a state of d^2 fp32 elements that is read and written."""


def recurrent(
    component: Recurrent, hidden: int, workload: Workload, iteration: Iteration, core: frozenset[str]
) -> Iterator[Operator]:
    """The operators named *core* over the prompts, and one step over the states of decoding sequences."""
    if iteration.prefill:
        lengths = tuple(chunk.new_tokens for chunk in iteration.prefill)
        prompts = Workload(lengths, workload.execution, core_kernels=workload.core_kernels)
        for operator in component_operators(component, hidden, prompts):
            if operator.name in core:
                yield operator
    moved = 2.0 * mixer_cache(component).bytes_per_sequence
    if iteration.prefill:
        yield Operator("keep_state", (Kernel("copy", 0.0, moved * len(iteration.prefill)),))
    if iteration.decode_contexts:
        stepped = moved * len(iteration.decode_contexts)
        yield Operator("state_step", (Kernel("state_step", _FLOPS_PER_BYTE * stepped, stepped),))
