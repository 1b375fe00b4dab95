"""What `rackcast run` shows of a serving loop: latencies, throughput, what limits it, where time and memory go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.headline import tier_label
from simulator.report.tables import fact_grid, new_table, percent, pool_tables, provenance, titled
from simulator.units import human_bytes, human_time, plain_number

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

PARTS = {
    "attention_s": ("attention and caches", "#009E73"),
    "dense_s": ("products", "#0072B2"),
    "experts_s": ("experts", "#56B4E9"),
    "exchange_s": ("expert exchanges", "#D55E00"),
    "tensor_parallel_s": ("tensor-parallel collectives", "#E69F00"),
    "pipeline_s": ("pipeline hand-overs", "#882255"),
    "small_kernels_s": ("small kernels", "#CC79A7"),
    "head_s": ("embedding, output layer, choice", "#5D4037"),
    "host_s": ("waiting for host or drives", "#A1887F"),
    "launch_bound_s": ("waiting for launches", "#9AA0A6"),
    "pipeline_wait_s": ("waiting for other stages", "#7D8B96"),
    "idle_s": ("idle", "#D5D9DC"),
}
"""Words and colour of each part of an engine's time."""


def serving_table(summary: Mapping[str, Any]) -> Group:
    """What to show of *summary*, the object of `run --json`."""
    from rich.console import Group

    head = titled(summary["scenario"], summary["verdict"])
    if "duration_s" not in summary:
        return Group(head, f"[bold]{shortage(summary)}[/bold]", *pool_tables(summary))
    told = f"[bold]{answer(summary)}[/bold]"
    return Group(head, told, "", fact_grid(facts(summary)), "", _times(summary), *pool_tables(summary))


def answer(summary: Mapping[str, Any]) -> str:
    """The result in a sentence."""
    kind, what = ("output", "") if summary["tpot_s"] else ("prompt", " of prompts")
    told = []
    if summary["ttft_s"]:
        told.append(f"first token after {human_time(summary['ttft_s']['p50'])}")
    if summary["tpot_s"]:
        told.append(f"a token every {human_time(summary['tpot_s']['p50'])}")
    each = plain_number(summary[f"{kind}_tokens_per_s_per_accelerator"])
    said = ", then ".join(told)
    return f"{said[0].upper()}{said[1:]}; {each} tokens{what}/s an accelerator"


def shortage(summary: Mapping[str, Any]) -> str:
    """What has no room, and where."""
    for key, where in (("memory", ""), ("prefill_memory", " where prompts are computed")):
        for tier, held in summary.get(key, {}).items():
            peak, most = held["peak_bytes"], held["usable_bytes" if tier == "hbm" else "capacity_bytes"]
            if peak <= most:
                continue
            if tier != "hbm":
                return f"{tier_label(tier)} of each accelerator would hold {human_bytes(peak)} of {human_bytes(most)}"
            return (
                f"Room for the longest request makes it {human_bytes(peak)}{where}, and serving.memory_utilization "
                f"leaves {human_bytes(most)}"
            )
    return "There is no room for caches"


def facts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What there is to say of a loop beside its parts: words, and what they stand for."""
    asked, cost, cache = summary["requests"], summary["cost"], summary["memory"]["hbm"]["cache"]
    for words, key in (("first token", "ttft_s"), ("further tokens", "tpot_s"), ("whole request", "latency_s")):
        if spread := summary[key]:
            yield words, ", ".join(f"{name} {human_time(spread[name])}" for name in ("p50", "p90", "p99"))
    yield "answers", _rate(summary, "output")
    if summary["prompt_tokens_per_s"]:
        yield "prompts", _rate(summary, "prompt")
    yield "limited by", f"{summary['limited_by']}; {_limits(summary['limits'])}"
    sent_back = f", {asked['preemptions']:,} sent back for want of room" if asked["preemptions"] else ""
    found = f", {percent(asked['cached_share'])} of prompts in the cache" if asked["cached_share"] else ""
    yield "requests", f"{asked['of']:,} in {human_time(summary['duration_s'])}{found}{sent_back}"
    if cache["mean_sequences"] is not None:
        room = f"{human_bytes(cache['room_bytes'])}: {plain_number(cache['mean_sequences'], 4)} of the mean length"
        yield "room for caches", room
    if prefill := summary.get("prefill"):
        yield "prefill", f"accelerators: {prefill['accelerators']}, busy {percent(prefill['busy_share'])}"
    if cost["usd_per_1m_output_tokens"] is not None:
        yield "cost", f"{plain_number(cost['usd_per_1m_output_tokens'])} USD per 1 M tokens of answers"
    yield "based on", provenance(summary["provenance"])


def _rate(summary: Mapping[str, Any], kind: str) -> str:
    whole, each = summary[f"{kind}_tokens_per_s"], summary[f"{kind}_tokens_per_s_per_accelerator"]
    return f"{plain_number(whole)} tokens/s, {plain_number(each)} per accelerator"


def _limits(shares: Mapping[str, float]) -> str:
    told = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {percent(share)}" for kind, share in told if share >= 0.01)


def _times(summary: Mapping[str, Any]) -> Table:
    from rich.bar import Bar

    whole = sum(summary["time"].values())
    found = new_table("where an engine's time goes", "time", "share", bar=True)
    for key, seconds in sorted(summary["time"].items(), key=lambda item: -item[1]):
        if seconds > 0.0005 * whole:
            words, colour = PARTS[key]
            bar = Bar(whole, 0, seconds, color=colour)
            found.add_row(words, human_time(seconds), percent(seconds / whole), bar)
    return found
