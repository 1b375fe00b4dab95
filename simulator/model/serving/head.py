"""Both ends of a model that serves: the embedding of all tokens; for one token of each sequence, logits and a choice.

The choice is greedy: logits are cast to fp32 and their largest found, as engines do before they sample. Sorting for
top-p or top-k sampling, penalties and grammars are not modelled.
"""

from __future__ import annotations

from math import ceil

from simulator.model.architecture import Architecture
from simulator.model.cache import BF16_BYTES, FP32_BYTES
from simulator.model.operator import Collective, Kernel, Operator
from simulator.model.operators.layers import embedding_operators, loss_operators
from simulator.model.serving.iteration import Iteration
from simulator.model.serving.layers import workload


def first_operators(architecture: Architecture, iteration: Iteration, tp: int) -> tuple[Operator, ...]:
    """Before the first layer."""
    return embedding_operators(architecture, workload(iteration, tp))


def last_operators(architecture: Architecture, iteration: Iteration, tp: int) -> tuple[Operator, ...]:
    """Behind the last layer: norm, output layer of each sequence's last token, all columns gathered, the choice."""
    rows = Iteration(decode_contexts=(1,) * max(1, iteration.sequences))
    found = loss_operators(architecture, workload(rows, tp), "compiled")
    end = next(number for number, operator in enumerate(found) if operator.name == "lm_head")
    logits = rows.tokens * ceil(architecture.vocabulary / tp) * tp
    gather = (Collective("all_gather", "tp", float(BF16_BYTES * logits)),) if tp > 1 else ()
    kernels = (
        Kernel("cast_up", 0.0, float((BF16_BYTES + FP32_BYTES) * logits)),
        Kernel("reduction", 0.0, float(FP32_BYTES * logits), dtype="fp32"),
    )
    return (
        *found[: end + 1],
        Operator("gather_logits", (), forward_collectives=gather),
        Operator("choose", kernels),
    )
