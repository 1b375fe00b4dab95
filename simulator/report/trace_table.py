"""What `rackcast trace` shows of a routing trace in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_SHOWN_LAYERS = 8


def trace_table(summary: Mapping[str, Any]) -> Group:
    """The answer, the facts, and the layers with the busiest ranks, of *summary*, the object of `trace --json`."""
    from rich.console import Group
    from rich.text import Text

    rank, expert = summary["rank_max_over_mean"], summary["expert_max_over_mean"]
    answer = f"Of {summary['ep']} ranks the busiest gets {rank:.2f} x the mean; the busiest expert {expert:.2f} x."
    return Group(
        Text(summary["trace"], style="bold"), Text(answer, style="bold"), "", _facts(summary), "", _layers(summary)
    )


def _facts(summary: Mapping[str, Any]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, words in _rows(summary):
        if words:
            grid.add_row(name, escape(words))
    return grid


def _rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    top_k, drift, pairs = summary["top_k"], summary["drift"], summary["togetherness"]
    picked = f", {top_k} picked by a token" if top_k else ""
    windows = f"{summary['windows']} windows of steps, {summary['steps_per_window']} wide"
    sources = f"from {summary['source_ranks']} ranks, the largest {summary['source_max_over_mean']:.2f} x the mean"
    moved = drift and f"{_share(drift['next_window'])} of assignments move from window to window"
    skew = f"Gini {summary['gini']:.2f}, Zipf exponent {summary['zipf_exponent']:.2f}"
    top = f"{_share(summary['top_20_percent_share'])} of rows on a fifth of the experts"
    recorded = [windows] if summary["windows"] > 1 else []
    recorded += [sources] if summary["source_ranks"] > 1 else []
    rows = [
        ("shape", f"{summary['layers']} MoE layers of {summary['experts']} experts{picked}"),
        ("skew", f"{skew}, {top}"),
        ("recorded", ", ".join(recorded)),
        ("source", summary["source"]),
    ]
    if drift and drift["next_window"] is not None:
        chance, overall = _share(drift["by_chance"]), _share(drift["first_to_last"])
        rows.insert(3, ("drift", f"{moved}, {chance} by chance; {overall} from first to last"))
    if pairs is not None:
        rows.insert(-1, ("together", f"{_share(max(0.0, pairs))} of a token's pairs of experts are more than chance"))
    if top_k:
        ranks, nodes = summary["ranks_per_token"], summary["nodes_per_token"]
        rows.insert(-1, ("sent", f"to {ranks:.2f} ranks and {nodes:.2f} nodes a token"))
    return rows


def _layers(summary: Mapping[str, Any]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("layer", "rank max/mean", "its rank", "expert max/mean", "its expert", "Gini"):
        table.add_column(name, justify="right", no_wrap=True)
    by_rank = sorted(summary["per_layer"], key=lambda layer: (-layer["rank_max_over_mean"], layer["layer"]))
    for layer in by_rank[:_SHOWN_LAYERS]:
        table.add_row(
            str(layer["layer"]),
            f"{layer['rank_max_over_mean']:.2f}",
            str(layer["hottest_rank"]),
            f"{layer['expert_max_over_mean']:.2f}",
            str(layer["hottest_expert"]),
            f"{layer['gini']:.2f}",
        )
    if len(by_rank) > _SHOWN_LAYERS:
        table.caption = f"the busiest {_SHOWN_LAYERS} of {len(by_rank)} layers"
    return table


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"
