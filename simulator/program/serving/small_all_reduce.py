"""All-reduces of inference engines' own, for small messages among ranks that share a switch.

In one shot every rank reads the buffers of all others and adds them up; in two, each adds up its part and then reads
the parts of the others. vLLM and SGLang take one shot up to 256 KiB among 8 ranks, 512 KiB among 4 and always among 2,
two up to 8 MiB, and the library beyond (vllm-project/vllm, csrc/custom_all_reduce.cuh and
`custom_all_reduce.py`); TensorRT-LLM chooses alike.
"""

from __future__ import annotations

from simulator.hardware.cluster import Cluster

MOST_BYTES = 8 * 2**20
MOST_RANKS = 8
_ONE_SHOT_BYTES = {2: MOST_BYTES, 4: 512 * 2**10, 8: 256 * 2**10}
"""Most bytes in one shot, by the most ranks."""


def small_all_reduce_s(cluster: Cluster, ranks: int, size: float) -> float | None:
    """Seconds of an all-reduce of *size* bytes among *ranks* ranks of one scale-up domain; None where the library's
    is taken.
    """
    links = cluster.node.scale_up
    if links.one_shot is None or size > MOST_BYTES or not 1 < ranks <= MOST_RANKS or links.kind != "switch":
        return None
    rate = cluster.levels[0].bandwidth_bytes_per_s * cluster.levels[0].share
    most = next(limit for group, limit in _ONE_SHOT_BYTES.items() if ranks <= group)
    if size <= most:
        return links.one_shot.value + (ranks - 1) * size / rate
    return 2 * links.one_shot.value + 2 * (ranks - 1) / ranks * size / rate
