"""What it costs to bring experts to where a plan wants them: once, from their contiguous places, or in each step with a
new plan, from where the last one had them.
"""

from __future__ import annotations

from typing import Any

from simulator.model.parameters import layer_parameters
from simulator.program.job import Job
from simulator.program.optimizers import moment_bytes
from simulator.routing.placement import contiguous, moves


def rebalancing(job: Job) -> dict[str, Any]:
    """Experts that change place, bytes that the busiest rank fetches for them, and the seconds that takes at least.

    Every rank fetches its shard of each expert that it lacks, from its node where a neighbour holds it; trained experts
    come with their optimizer's states. All fetch at once at the share of the link rate that large messages attain; that
    the holder of a wanted expert must send to many is not counted, hence "at least".
    """
    assert job.routing is not None
    new, levels = job.routing.placement, job.cluster.levels
    layers = list(job.architecture.moe_layers())
    old = job.routing.before or contiguous(len(layers), new.experts, new.ranks)
    found = moves(old, new, max(1, job.cluster.node.accelerators // job.mesh.etp))
    each = _expert_bytes(job) / (job.mesh.efsdp * job.mesh.etp)
    near, far = found.within_node.sum(axis=0) * each, found.across_nodes.sum(axis=0) * each
    inner, outer = (level.bandwidth_bytes_per_s * level.share for level in (levels[0], levels[-1]))
    return {
        "experts_moved": found.total,
        "rebalance_bytes": float((near + far).max()),
        "rebalance_s": float((near / inner + far / outer).max()),
    }


def _expert_bytes(job: Job) -> float:
    """Bytes of one routed expert of one layer, with the states that stay from step to step."""
    first = next(iter(job.architecture.moe_layers()))
    tensors = [p for p in layer_parameters(job.architecture, first) if p.role == "routed_expert"]
    trained = job.trained.lora_rank is None
    width = job.optimizer.stored_bytes + moment_bytes(job.optimizer, matrix=True) if trained else job.frozen_bytes
    return sum(tensor.elements / tensor.shape[0] for tensor in tensors) * width
