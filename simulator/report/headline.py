"""The answer of a forecast in one line, and the words for where the time of a step goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.units import human_time

TIME_LABELS = {
    "compute_s": "compute",
    "exposed_all_to_all_s": "exposed expert all-to-all",
    "exposed_fsdp_s": "exposed FSDP",
    "exposed_swap_s": "exposed copies to and from the host",
    "exposed_host_s": "waiting for the host's cores",
    "exposed_drives_s": "waiting for drives",
    "exposed_tp_s": "exposed tensor parallel",
    "exposed_pp_s": "exposed pipeline transfer",
    "pipeline_bubble_s": "pipeline bubble",
    "launch_bound_s": "launch-bound",
    "imbalance_s": "imbalance",
}
"""Parts of the step, by the keys of `time` in the summary. "Exposed" time is not hidden behind computation."""

TIME_COLOURS = {
    "compute_s": "#0072B2",
    "exposed_all_to_all_s": "#D55E00",
    "exposed_fsdp_s": "#E69F00",
    "exposed_swap_s": "#5D4037",
    "exposed_host_s": "#A1887F",
    "exposed_drives_s": "#78909C",
    "exposed_tp_s": "#C8B400",
    "exposed_pp_s": "#882255",
    "pipeline_bubble_s": "#9AA0A6",
    "launch_bound_s": "#56B4E9",
    "imbalance_s": "#CC79A7",
}
"""Of those parts: those of the kinds of task (:mod:`simulator.report.kinds`) that they are spent on or waited for."""

TIER_LABELS = {"hbm": "HBM", "ddr": "DDR", "nvme": "NVMe"}


def time_label(key: str) -> str:
    """Words for the key of a time; a new key is its own label."""
    return TIME_LABELS.get(key, key.removesuffix("_s").replace("_", " "))


def time_colour(key: str) -> str:
    """A colour for the key of a time; new keys are grey."""
    return TIME_COLOURS.get(key, "#B4B9BD")


def tier_label(tier: str) -> str:
    """The usual spelling of a memory tier."""
    return TIER_LABELS.get(tier, tier)


def headline(summary: Mapping[str, Any]) -> str:
    """The step time and its largest part, with the largest loss where that part is computation itself.

    "Step 41.2 s: 63 % exposed expert all-to-all", "Step 3.1 s: 71 % compute, 12 % exposed FSDP".
    """
    step_s = summary["step_time_s"]["p50"]
    parts = sorted(((value, key) for key, value in summary["time"].items() if value > 0), reverse=True)
    told = parts[:2] if parts and parts[0][1] == "compute_s" else parts[:1]
    shares = ", ".join(f"{value / step_s:.0%} {time_label(key)}".replace("%", " %") for value, key in told)
    return f"Step {human_time(step_s)}: {shares}" if shares else f"Step {human_time(step_s)}"


def left_out(summary: Mapping[str, Any]) -> str:
    """What the timeline leaves out: "4 of 64 micro-batches, the others repeat the last"; empty if it shows the step."""
    engine = summary.get("engine", {})
    shown, all_of_them = engine.get("micro_batches_simulated"), engine.get("micro_batches")
    if shown == all_of_them:
        return ""
    return f"{shown} of {all_of_them} micro-batches, the others repeat the last"
