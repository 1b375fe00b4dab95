"""Measure what skewed routing costs on real GPUs: the all-to-all and the grouped matrix product of one layer.

    torchrun --nproc-per-node N measure_skew.py cases.json results.jsonl

A case is {id, kind "all_to_all", row_bytes, rows [[to rank 0, to rank 1, ...], ...]} or {id, kind "grouped_gemm",
inner, out, rows [of each expert]}, which all ranks compute, or rows [[of each expert] of each rank];
tools/routing_figures.py --cases writes them from a routing trace. Cases with rows of another number of ranks than N are
passed over. Numbers are bf16. One line of JSON a case: the median, tenth and ninetieth percentile of device seconds,
those of the slowest rank, and `ranks_s`, each rank's median.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

REPEATS = 30


def main() -> None:
    """Measure every case of so many ranks; rank 0 writes."""
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    cases = [case for case in json.loads(Path(sys.argv[1]).read_text()) if fits(case, dist.get_world_size())]
    with Path(sys.argv[2]).open("a") as results:
        for case in cases:
            times = (all_to_all if case["kind"] == "all_to_all" else grouped_gemm)(case, rank)
            own = torch.tensor(times, device="cuda", dtype=torch.float64)
            each = [torch.empty_like(own) for _ in range(dist.get_world_size())]
            dist.all_gather(each, own)
            medians = [float(found[0]) for found in each]
            slowest = each[medians.index(max(medians))].tolist()
            if rank == 0:
                names = ("median_s", "p10_s", "p90_s")
                told = {**case, **dict(zip(names, slowest, strict=True)), "ranks_s": medians}
                results.write(json.dumps(told) + "\n")
                results.flush()
    dist.destroy_process_group()


def fits(case: dict[str, Any], ranks: int) -> bool:
    """Whether *case* is one for so many ranks."""
    return isinstance(case["rows"][0], int) or len(case["rows"]) == ranks


def all_to_all(case: dict[str, Any], rank: int) -> tuple[float, float, float]:
    """Uneven splits, as a dispatch of tokens has them."""
    rows, width = case["rows"], case["row_bytes"] // 2
    send, receive = rows[rank], [rows[source][rank] for source in range(len(rows))]
    sent = torch.randn(sum(send), width, device="cuda", dtype=torch.bfloat16)
    got = torch.empty(sum(receive), width, device="cuda", dtype=torch.bfloat16)
    return timed(lambda: dist.all_to_all_single(got, sent, receive, send), together=True)


def grouped_gemm(case: dict[str, Any], rank: int) -> tuple[float, float, float]:
    """y = x W of every expert at once."""
    rows = torch.tensor(case["rows"], dtype=torch.int32)
    rows = rows[rank] if rows.ndim == 2 else rows
    ends = torch.cumsum(rows, 0, dtype=torch.int32).cuda()
    x = torch.randn(int(rows.sum()), case["inner"], device="cuda", dtype=torch.bfloat16)
    w = torch.randn(len(rows), case["inner"], case["out"], device="cuda", dtype=torch.bfloat16)
    return timed(lambda: torch._grouped_mm(x, w, offs=ends), together=False)


def timed(call: Callable[[], object], *, together: bool) -> tuple[float, float, float]:
    """Median, tenth and ninetieth percentile of device seconds."""
    for _ in range(3):
        call()
    times = []
    for _ in range(REPEATS):
        if together:
            dist.barrier()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    times.sort()
    return statistics.median(times), times[REPEATS // 10], times[-1 - REPEATS // 10]


if __name__ == "__main__":
    main()
