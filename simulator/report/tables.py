"""Results for the terminal, the answer first; each table fits 80 columns and grows with the terminal.

Functions return rich renderables and print nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.campaign_table import campaign_rows
from simulator.report.headline import headline, left_out, tier_label, time_colour, time_label
from simulator.report.kinds import group_of
from simulator.report.peaks_table import peaks_table
from simulator.units import human_bytes, human_count, human_time, plain_number

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    from simulator.model.census import Census

_VERDICT_STYLES = {"fits": "bold green", "tight": "bold yellow", "does not fit": "bold red"}
_MEMORY_COLOUR = "#009E73"


def summary_table(summary: Mapping[str, Any]) -> Group:
    """What `rackcast run` shows of *summary*, the object of `run --json`."""
    from rich.console import Group

    return Group(
        titled(summary["scenario"], summary["verdict"]),
        f"[bold]{headline(summary)}[/bold]",
        "",
        fact_grid(facts(summary)),
        "",
        _time_table(summary),
        *memory_tables(summary["memory"]),
    )


def fit_table(result: Mapping[str, Any]) -> Group:
    """What `rackcast fit` shows of *result*, the object of `fit --json`."""
    from rich.console import Group

    parts: list[RenderableType] = [
        titled(result.get("scenario", ""), result["verdict"]),
        *pool_tables(result),
    ]
    if result["suggestions"]:
        parts += ["", _suggestions(result["suggestions"])]
    elif not result["fits"]:
        parts += ["", "No single change makes it fit."]
    return Group(*parts)


def model_table(census: Census) -> Table:
    """Parameters of a model by block, with what one token uses and what its past costs to keep."""
    table = new_table("block", "per layer", "layers", "total", "share", title="Parameters")
    for row in census.rows:
        layers = row.layers or 1
        share = percent(row.parameters / census.total_parameters) if row.counted else "not counted"
        cells = (
            human_count(row.parameters / layers) if row.layers else "",
            str(row.layers or ""),
            human_count(row.parameters),
            share,
        )
        table.add_row(row.name, *cells, style="" if row.counted else "dim")
    table.add_section()
    table.add_row(
        "total", "", "", human_count(census.total_parameters), human_bytes(census.bytes_bf16) + " in bf16", style="bold"
    )
    active = percent(census.active_parameters / census.total_parameters)
    table.add_row("used by one token", "", "", human_count(census.active_parameters), active, style="bold")
    for words, size, per in (
        ("keys and values", census.kv_bytes_per_token, "per token"),
        ("indexer keys", census.index_bytes_per_token, "per token"),
        ("states", census.state_bytes_per_sequence, "per sequence"),
    ):
        if size:
            table.add_row(words, "", "", human_bytes(size), per)
    return table


def models_table(models: Mapping[str, Mapping[str, Any]]) -> Table:
    """A line for each of *models*, of the keys of `rackcast model --json`."""
    table = new_table("model", "layers", "total", "a token's", "notes")
    for name, one in models.items():
        counts = (human_count(one[f"{which}_parameters"]) for which in ("total", "active"))
        notes = len(one["approximations"]) + len(one["unknown_fields"])
        table.add_row(name, str(one["layers"]), *counts, str(notes or ""))
    return table


def titled(name: str, verdict: str) -> Text:
    """The scenario's name and whether it fits."""
    from rich.text import Text

    return Text.assemble((name, "bold"), "  " if name else "", (verdict, _VERDICT_STYLES[verdict]))


def facts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What there is to say of a step beside its parts: words, and what they stand for."""
    step, routing, cost = summary["step_time_s"], summary.get("routing"), summary.get("cost")
    yield "step time", f"{human_time(step['p50'])} (p10 {human_time(step['p10'])}, p90 {human_time(step['p90'])})"
    rate, each = summary["tokens_per_s"], summary["tokens_per_s_per_accelerator"]
    yield "throughput", f"{plain_number(rate)} tokens/s, {plain_number(each)} per accelerator"
    yield "MFU", percent(summary["model_flops_utilization"])
    if cost and cost.get("usd_per_step") is not None:
        step_usd, tokens_usd = (plain_number(cost[name], 4) for name in ("usd_per_step", "usd_per_1m_tokens"))
        yield "cost", f"{step_usd} USD per step, {tokens_usd} USD per 1 M tokens"
    if routing and routing["expert_max_over_mean"] > 1:
        rank, expert = routing["rank_max_over_mean"], routing["expert_max_over_mean"]
        yield "routing", f"busiest rank {rank:.3g} x mean, busiest expert {expert:.3g} x mean"
    if routing and routing.get("experts_moved"):
        fetched, seconds = routing["rebalance_bytes"], routing["rebalance_s"]
        yield "rebalance", f"once, {human_bytes(fetched)} on the busiest rank, at least {human_time(seconds)}"
    if images := summary.get("images"):
        mean, most, ratio = (images[name] for name in ("per_rank_mean", "per_rank_max", "rank_max_over_mean"))
        yield "images", f"{mean:.3g} a rank, {most} on the fullest: {ratio:.3g} x mean"
    if part := summary.get("segments"):
        used, whole = part["accelerators"], part["of"]
        yield "segments", f"{part['nodes']} nodes: {used} of {whole} accelerators of a scale-up domain each"
    yield "based on", provenance(summary["provenance"])
    if summary.get("widest_inputs"):
        yield "least sure", ", ".join(summary["widest_inputs"])
    if missing := left_out(summary):
        yield "simulated", missing
    if "campaign" in summary:
        yield from campaign_rows(summary["campaign"])


def fact_grid(told: Iterable[tuple[str, str]]) -> Table:
    """*told* in two columns."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for words, what in told:
        grid.add_row(words, what)
    return grid


def provenance(weights: Mapping[str, float]) -> str:
    """What prices are based on, in shares of the time."""
    total = sum(weights.values())
    return (
        ", ".join(f"{percent(weight / total)} {grade}" for grade, weight in weights.items() if weight > 0.0005 * total)
        or "none"
    )


def _time_table(summary: Mapping[str, Any]) -> Table:
    from rich.bar import Bar

    step_s = summary["step_time_s"]["p50"]
    table = new_table("where the step goes", "time", "share", bar=True)
    for key, part_s in sorted(summary["time"].items(), key=lambda item: -item[1]):
        if part_s <= 0:
            continue
        bar = Bar(step_s, 0, part_s, color=time_colour(key))
        table.add_row(time_label(key), human_time(part_s), percent(part_s / step_s), bar)
        if key == "compute_s":
            for kind, kind_s in main_kinds(summary.get("compute", {}), part_s):
                bar = Bar(step_s, 0, kind_s, color=group_of(kind).colour)
                table.add_row(
                    f"  {kind.replace('_', ' ')}", human_time(kind_s), percent(kind_s / step_s), bar, style="dim"
                )
    return table


def main_kinds(seconds: Mapping[str, float], whole_s: float) -> list[tuple[str, float]]:
    """Kinds of computation that take at least a twentieth of it, largest first."""
    return sorted(((k, s) for k, s in seconds.items() if s >= 0.05 * whole_s), key=lambda item: -item[1])


def pool_tables(result: Mapping[str, Any]) -> list[RenderableType]:
    """The tables of a result's memory, and those of accelerators that prefill apart."""
    apart = memory_tables(result.get("prefill_memory", {}), of=" where prompts are computed")
    return [*memory_tables(result["memory"]), *apart]


def memory_tables(memory: Mapping[str, Any], of: str = "") -> list[RenderableType]:
    """A table for each tier *of* some accelerators that holds something, bars against its capacity, and the head-room
    last.
    """
    from rich.bar import Bar

    tables: list[RenderableType] = []
    for tier, held in memory.items():
        peak, capacity = held["peak_bytes"], held["capacity_bytes"]
        if not peak:
            continue
        settling = max(peak, held.get("settling_peak_bytes", 0.0))
        scale, over = max(settling, capacity), settling > capacity
        table = new_table(f"{tier_label(tier)}{of} at its peak", "bytes", "of capacity", bar=True)
        position = 0.0
        for kind, size in held["breakdown"].items():
            if size > 0:
                bar = Bar(scale, position, position + size, color=_MEMORY_COLOUR)
                table.add_row(kind, human_bytes(size), percent(size / capacity), bar)
                position += size
        table.add_section()
        bar = Bar(scale, 0, peak, color=_MEMORY_COLOUR if peak <= capacity else "red")
        table.add_row(
            f"peak of {human_bytes(capacity)}", human_bytes(peak), percent(peak / capacity), bar, style="bold"
        )
        if settling > peak:
            bar = Bar(scale, 0, settling, color="red" if over else _MEMORY_COLOUR)
            table.add_row("before steps are alike", human_bytes(settling), percent(settling / capacity), bar)
        left = abs(capacity - settling)
        table.add_row("too much" if over else "free", human_bytes(left), percent(left / capacity), style="bold")
        if node := held.get("node"):
            whole, of_node = human_bytes(node["peak_bytes"]), human_bytes(node["capacity_bytes"])
            words = f"node {node['number']}: {node['cards']} cards, of {of_node}"
            table.add_row(words, whole, percent(node["peak_bytes"] / node["capacity_bytes"]))
        tables += ["", table]
        if held.get("peaks"):
            tables += ["", peaks_table(held["peaks"])]
    return tables


def _suggestions(suggestions: list[Mapping[str, Any]]) -> Table:
    from rich.text import Text

    table = new_table("change that makes it fit", "peak", "step")
    for suggestion in suggestions:
        step_s = suggestion["step_time_s"]
        table.add_row(
            Text(suggestion["change"]),
            human_bytes(suggestion["peak_bytes"]),
            human_time(step_s) if step_s is not None else "-",
        )
    return table


def new_table(first: str, *numbers: str, bar: bool = False, title: str | None = None) -> Table:
    """A table whose first column is text, whose others are numbers to the right, and whose last may be bars."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, expand=bar, pad_edge=False, show_edge=False, title=title, title_justify="left")
    table.add_column(first, no_wrap=bar)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    if bar:
        table.add_column("", ratio=1, min_width=10)
    return table


def percent(share: float) -> str:
    """A share for people."""
    return f"{100 * share:.1f} %"
