"""A forecast's records without a forecast: a small schedule of a mixture-of-experts step, computed by hand's rules.

Each layer computes attention, sends its tokens, runs the shared expert meanwhile, then the experts, and sends them
back; the next layer's weights are gathered ahead; in backward gradients are reduced behind. The collectives end
together on all ranks, so the hottest rank makes the others wait.
"""

from dataclasses import dataclass, field

import numpy as np

from simulator.forecast.timeline import MemoryCurve, TellingRank, Timeline
from simulator.report.origin import Origin

RANKS = (TellingRank(64, "median"), TellingRank(5, "hottest"), TellingRank(17, "coldest"))
LOAD = np.array([1.0, 1.7, 0.6])
US = 1_000


@dataclass
class Step:
    rows: list = field(default_factory=list)
    start: list = field(default_factory=list)
    end: list = field(default_factory=list)
    free: dict = field(default_factory=dict)

    def run(self, name, stream, kind, phase, layer, micro_batch, duration_us, after=(), together=False, sent=0.0):
        zero = np.zeros(3, np.int64)
        ready = np.max([self.free.get(stream, zero), *after, zero], axis=0)
        duration = np.broadcast_to(np.round(np.asarray(duration_us) * US), 3).astype(np.int64)
        end = np.full(3, (ready + duration).max()) if together else ready + duration
        self.rows.append((name, stream, kind, phase, layer, micro_batch, sent))
        self.start.append(ready)
        self.end.append(end)
        self.free[stream] = end
        return end


def step(layers=2, micro_batches=1, pieces=1):
    """A step of *layers* x *micro_batches*; *pieces* splits each computation to make the timeline longer."""
    s = Step()
    for m in range(micro_batches):
        weights = s.run("gather", "fsdp_gather", "all_gather", "forward", 0, m, 300, together=True, sent=2e8)
        for layer in range(layers):
            following, started = layer + 1, np.maximum(weights, s.free.get("compute", weights))
            ahead = (
                s.run(
                    "gather",
                    "fsdp_gather",
                    "all_gather",
                    "forward",
                    following,
                    m,
                    300,
                    (started,),
                    together=True,
                    sent=2e8,
                )
                if following < layers
                else weights
            )
            _layer(s, "forward", layer, m, weights, pieces, 1.0)
            weights = ahead
        s.run("loss", "compute", "loss", "forward", -1, m, 900)
        for layer in reversed(range(layers)):
            before = s.free["compute"] - 900 * US
            weights = s.run(
                "gather", "fsdp_gather", "all_gather", "backward", layer, m, 300, (before,), together=True, sent=2e8
            )
            done = _layer(s, "backward", layer, m, weights, pieces, 2.0)
            s.run(
                "reduce", "fsdp_reduce", "reduce_scatter", "backward", layer, m, 400, (done,), together=True, sent=4e8
            )
    last = s.free["fsdp_reduce"]
    s.run("adamw", "compute", "optimizer", "optimizer", -1, -1, 2000, (last,))
    return timeline_of(s)


def _layer(s, phase, layer, m, weights, pieces, slowdown):
    def compute(name, kind, duration_us, after=()):
        for _ in range(pieces):
            end = s.run(name, "compute", kind, phase, layer, m, duration_us * slowdown / pieces, after)
        return end

    compute("norm", "elementwise", 60, (weights,))
    compute("qkv", "gemm", 350)
    mixed = compute("attention", "attention", 500)
    sent = s.run("dispatch", "all_to_all", "all_to_all", phase, layer, m, 700 * LOAD, (mixed,), together=True, sent=3e8)
    compute("shared_expert", "gemm", 250)
    done = compute("experts", "grouped_gemm", 800 * LOAD, (sent,))
    back = s.run("combine", "all_to_all", "all_to_all", phase, layer, m, 700 * LOAD, (done,), together=True, sent=3e8)
    return compute("add", "elementwise", 80, (back,))


def timeline_of(s):
    name, stream, kind, phase, layer, micro_batch, sent = zip(*s.rows, strict=True)
    return Timeline(
        ranks=RANKS,
        name=name,
        stream=stream,
        kind=kind,
        phase=phase,
        layer=np.array(layer),
        micro_batch=np.array(micro_batch),
        start_ns=np.array(s.start),
        end_ns=np.array(s.end),
        wire_bytes=np.outer(sent, LOAD),
        waited_for=np.full((len(name), len(RANKS)), -1),
    )


def origin(name="kimi-k3.1-lora-128-h200"):
    return Origin(name, ["parallel.ep=64"], "name: sample\nparallel: {ep: 64}\n", "1.2.3")


def memory(timeline, capacity_bytes=141e9):
    """HBM of each telling rank: activations pile up in forward and go in backward, gathered weights come and go."""
    return (*(_curve(timeline, column, capacity_bytes) for column in range(3)), _host(timeline))


def _curve(timeline, column, capacity_bytes):
    compute = [i for i, stream in enumerate(timeline.stream) if stream == "compute"]
    forward = np.array([timeline.phase[i] == "forward" for i in compute])
    grown = np.cumsum(np.where(forward, 1.0, -1.0))
    grown = (grown - grown.min()) / np.ptp(grown)
    points = len(compute)
    steady = np.ones(points)
    return MemoryCurve(
        rank=timeline.ranks[column],
        tier="hbm",
        capacity_bytes=capacity_bytes,
        time_ns=timeline.start_ns[compute, column],
        bytes_by_kind={
            "parameters": 31e9 * steady,
            "gradients": 2e9 * steady,
            "optimizer": 6e9 * steady,
            "saved activations": 48e9 * LOAD[column] ** 0.5 * grown,
            "gathered parameters": np.where(np.arange(points) % 7 < 4, 5.2e9, 2.6e9),
            "reduce buffers": np.where(forward, 0.0, 2.5e9),
            "communication buffers": 3e9 * steady,
            "context": 1.5e9 * steady,
        },
    )


def _host(timeline):
    return MemoryCurve(timeline.ranks[0], "nvme", 3.84e12, np.zeros(0, np.int64), {})


def summary(timeline):
    """Keys of `run --json`."""
    step_s = float(timeline.end_ns.max() / 1e9)
    share = {
        "compute_s": 0.24,
        "exposed_all_to_all_s": 0.63,
        "exposed_fsdp_s": 0.04,
        "exposed_swap_s": 0.0,
        "exposed_tp_s": 0.0,
        "exposed_pp_s": 0.0,
        "pipeline_bubble_s": 0.0,
        "launch_bound_s": 0.02,
        "imbalance_s": 0.07,
    }
    peak = max(sum(c.bytes_by_kind.values()).max() for c in memory(timeline)[:3])
    return {
        "scenario": "kimi-k3.1-lora-128-h200",
        "fits": True,
        "verdict": "fits",
        "step_time_s": {"p10": step_s * 0.93, "p50": step_s, "p90": step_s * 1.08},
        "widest_inputs": ["all_to_all (scaled)"],
        "tokens_per_s": 1048576 / step_s,
        "tokens_per_s_per_accelerator": 8192 / step_s,
        "model_flops_utilization": 0.147,
        "memory": {
            "hbm": {
                "peak_bytes": float(peak),
                "capacity_bytes": 141e9,
                "breakdown": {k: float(v.max()) for k, v in memory(timeline)[1].bytes_by_kind.items()},
            }
        },
        "time": {name: part * step_s for name, part in share.items()},
        "cost": {"usd_per_step": 4.61, "usd_per_1m_tokens": 4.4},
        "compute": {"gemm": 0.1 * step_s, "grouped_gemm": 0.12 * step_s, "elementwise": 0.001 * step_s},
        "traffic": {"all_to_all_bytes_per_micro_batch": 2.4e9},
        "collectives": [
            {"operation": "all_gather", "axis": "dp_shard", "algorithms": ["ring LL128", "ring Simple"], "tasks": 748}
        ],
        "routing": {
            "rank_max_over_mean": 1.72,
            "expert_max_over_mean": 6.4,
            "source_max_over_mean": 1.0,
            "slots_per_rank": 14,
            "dropped_share": 0.0,
        },
        "engine": {
            "events": 41200,
            "classes": 16,
            "ranks": 128,
            "micro_batches": 1,
            "micro_batches_simulated": 1,
            "wall_s": 1.7,
        },
        "provenance": {"measured": 21, "scaled": 4, "datasheet": 7, "assumed": 3},
    }
