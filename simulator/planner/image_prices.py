"""What encoding the images of a micro-batch costs the first stage at least, for any split of the batch.

Without experts nobody waits within a pass, and the step takes as long as the rank with most images. Experts make ranks
wait for each other, and a rank with many images may be one with little else to do: the mean rank's images count then.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from simulator.forecast.image_batches import ImageBatches
from simulator.model.operators.vision import segments
from simulator.program.costs import Costs
from simulator.program.image_code import differentiated
from simulator.program.image_load import ImageLoad
from simulator.program.job import Job


class ImagePrices:
    """For splits of *job*'s batch, whose images are *batches*."""

    def __init__(self, job: Job, batches: ImageBatches) -> None:
        self._job = job
        self._batches = batches
        self._costs = Costs(job.cluster.accelerator, job.workload.execution)
        self._of = cache(self._of_images)
        self.least_s = cache(self._least_s)

    def _least_s(self, dp_replicate: int, dp_shard: int, sequences: int) -> tuple[float, float]:
        """Seconds of a forward and of a backward pass."""
        load = self._batches.load(dp_replicate * dp_shard, sequences)
        counts, ranks = np.unique(load.counts, return_counts=True)
        passes = np.array([self._of(load.patches, int(count)) for count in counts])
        least = passes[-1] if self._job.routing is None else np.average(passes, axis=0, weights=ranks)
        return float(least[0]), float(least[1])

    def _of_images(self, patches: int, count: int) -> tuple[float, float]:
        """Of a rank with *count* images."""
        tower, trained = self._job.architecture.vision, self._job.trained
        assert tower is not None
        load = ImageLoad(patches, np.array([count]))
        workload = replace(self._job.workload, image_patches=load.image_patches(tower, count))
        forward_ns = backward_ns = 0
        for segment in segments(tower, workload):
            for operator in differentiated(trained, segment).operators:
                whole = trained.whole(segment.role)
                forward_ns += int(np.max(self._costs.forward(operator, (), 1, None).duration_ns))
                backward_ns += int(np.max(self._costs.backward(operator, (), 1, None, trained=whole).duration_ns))
        return forward_ns / 1e9, backward_ns / 1e9
