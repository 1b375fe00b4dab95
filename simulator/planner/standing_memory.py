"""Device memory that a stage holds beside weights and activations, at least, for many splits at once.

The context, the buffers of each communicator that some task of the stage surely uses, the workspaces of the matmul
library, and the buffers of the exchange of rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simulator.forecast.memory import COMMUNICATOR_BYTES, CONTEXT_BYTES
from simulator.model.architecture import MixtureOfExperts
from simulator.planner.orders import Order
from simulator.planner.places import places
from simulator.planner.splits import Column, Splits
from simulator.planner.stages import Edges, Values, over_stages
from simulator.program.job import Job


class StandingMemory:
    """For splits of *job*'s model."""

    def __init__(self, job: Job) -> None:
        self._job = job
        layers = [place.layers for place in places(job.architecture)]
        self._mixers = np.array([any(layer.mixer is not None for layer in some) for some in layers], float)
        self._experts = np.array(
            [any(isinstance(layer.feed_forward, MixtureOfExperts) for layer in some) for some in layers], float
        )

    def of(
        self,
        splits: Splits,
        edges: Edges,
        order: Order,
        trained: tuple[Values, Values],
    ) -> Values:
        """Bytes of each stage but for buffers, [splits, stages]. *trained* elements outside and within routed experts,
        [splits, virtual stages].
        """
        mixers, experts = (
            (over_stages(layers, edges) > 0)[order.held].any(axis=1) for layers in (self._mixers, self._experts)
        )
        learnt, learnt_routed = ((elements > 0)[:, order.held].any(axis=2) for elements in trained)
        fsdp = splits["dp_shard"] * splits["cp"]
        efsdp = fsdp * splits["tp"] // (splits["ep"] * splits["etp"])
        fully = splits["zero"] == 3
        used = [
            _several(splits["pp"]) & np.ones_like(mixers),
            _several(splits["tp"]) & (mixers | experts),
            _several(splits["cp"]) & mixers,
            _several(splits["ep"]) & experts,
            _several(splits["etp"]) & experts,
            _several(fsdp) & ((fully[:, None] & mixers) | learnt),
            _several(efsdp) & ((fully[:, None] & experts) | learnt_routed),
            _several(splits["dp_replicate"]) & (learnt | learnt_routed),
        ]
        communicators = np.sum(used, axis=0) * COMMUNICATOR_BYTES
        return np.asarray(CONTEXT_BYTES + communicators + self._workspaces(splits)[:, None])

    def of_all(self, splits: Splits) -> Values:
        """Bytes that every stage has, [splits]."""
        return CONTEXT_BYTES + self._workspaces(splits)

    def buffers(self, splits: Splits, edges: Edges, order: Order, exchange_bytes: Values) -> Values:
        """Bytes of each stage for the exchange of rows, which keeps *exchange_bytes* where there is one, [splits]."""
        experts = (over_stages(self._experts, edges) > 0)[order.held].any(axis=1)
        return np.where(_several(splits["ep"]) & experts, exchange_bytes[:, None], 0.0)

    def _workspaces(self, splits: Splits) -> Values:
        """Those of the handles that every stage has: two of PyTorch, or one of Transformer Engine."""
        engine = (splits["zero"] == 1) & (self._job.workload.execution == "fused")
        return np.where(engine, 1.0, 2.0) * self._job.cluster.accelerator.matmul_workspace_bytes


def _several(ranks: Column) -> npt.NDArray[np.bool_]:
    """Whether a group has more than one member, [splits, 1]."""
    return (ranks > 1)[:, None]
