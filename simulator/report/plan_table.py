"""A plan and a sweep for the terminal: the winner first, then what the others lose by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from simulator.report.headline import time_label
from simulator.units import human_bytes, human_count, human_time, plain_number

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_STYLES = {
    "winner": "bold green",
    "fits": "",
    "tight": "yellow",
    "does not fit": "red",
    "does not survive": "red",
    "failed": "red",
    "pruned": "dim",
    "left": "dim",
}
_ORDER = ("virtual_pipeline", "stage_layers")
"""What `parallel` says beside degrees of the mesh."""
_LONGEST_WORD = len("dp_replicate")
"""Columns of words are no narrower, so that none is cut."""
_MOST_EXPLAINED = 30
_MOST_CASES = 50
"""Cases of a sweep that are shown; all are in its file."""
_MOST_REASONS = 5


def plan_table(plan: Mapping[str, Any], *, explain: bool) -> Group:
    """What `rackcast plan` shows of *plan*, the object of `plan --json`; with *explain* splits not simulated too."""
    from rich.console import Group

    lines = [f"[bold]{plan_headline(plan)}[/bold]", *survival_line(plan), counted_line(plan), *own_line(plan)]
    return Group(*lines, "", _splits(plan, explain=explain))


def plan_headline(plan: Mapping[str, Any]) -> str:
    """The answer in one line."""
    winner = plan["winner"]
    if winner is None and any(split["survives"] for split in plan["splits"]):
        return f"No split of {plan['scenario']} that fits {plan['accelerators']:,} cards goes on with nodes lost"
    if winner is None:
        return f"No split of {plan['scenario']} fits {plan['accelerators']:,} cards"
    return f"{split_label(winner)}: step {human_time(winner['step_time_s'])} on {plan['accelerators']:,} cards"


def survival_line(plan: Mapping[str, Any]) -> list[str]:
    """What the winner becomes when nodes are lost, where it has to go on."""
    left = plan["winner"] and plan["winner"]["survives"]
    if not left:
        return []
    words = f"{left['accelerators']:,} of the {left['accelerators_left']:,} cards left"
    return [
        f"With the nodes lost that it has to survive: {_degrees(left)}, {human_time(left['step_time_s'])} on {words}"
    ]


def counted_line(plan: Mapping[str, Any]) -> str:
    """How the search went, in a sentence."""
    counted = plan["counted"]
    words = (
        f"{counted['enumerated']:,} splits: {counted['pruned']:,} ruled out by bounds "
        f"({counted['pruned_for_memory']:,} for memory), {counted['checked']} too large or tight when accounted for, "
        f"{counted['simulated']} simulated"
    )
    if plan["complete"]:
        return f"{words}; nothing that is left can be faster"
    faster = f"up to {100 * plan['may_be_faster_by']:.0f} % faster as far as bounds tell"
    large = counted["too_large_to_simulate"]
    told = f" ({large:,} of them too large to simulate)" if large else ""
    return f"{words}, {counted['left']:,} left{told}, {faster}: --simulate looks at more"


def own_line(plan: Mapping[str, Any]) -> list[str]:
    """That the scenario's own layout was not looked at, where it was not."""
    told = "The scenario's own layout is none of these splits and was not tried: where it is possible, it may be faster"
    return [] if plan["own_among_splits"] else [told]


def split_label(split: Mapping[str, Any]) -> str:
    """A split in a few words, degrees of 1 left out: "dp_shard 16 pp 8 ep 16, ZeRO-1, recompute, 2 a micro-batch"."""
    words = [_degrees(split), f"ZeRO-{split['zero']}"]
    if split["recompute"] != "none":
        words.append("recompute" if split["recompute"] == "full" else f"recompute {split['recompute']}")
    if split["micro_batch_sequences"] > 1:
        words.append(f"{split['micro_batch_sequences']} a micro-batch")
    return ", ".join([*words, *_order_words(split)])


def _order_words(split: Mapping[str, Any]) -> list[str]:
    """Schedule and exchange, where they are not the plain ones."""
    words = []
    if split["virtual_pipeline"] > 1:
        words.append(f"{split['virtual_pipeline']} virtual stages")
    if split["stage_layers"]:
        words.append(f"layers {_runs(split['stage_layers'])}")
    if split["pipeline_schedule"] != "1f1b":
        words.append(split["pipeline_schedule"])
    if split["exchange"] != "all_to_all":
        words.append(f"{split['exchange']} exchange")
    if split["overlap_exchanges"]:
        words.append("exchanges overlapped")
    return words


def _runs(counts: Sequence[int]) -> str:
    """Numbers in a row, alike ones together: "3 + 14 x 4 + 2"."""
    runs = [(number, len(list(alike))) for number, alike in groupby(counts)]
    return " + ".join(f"{often} x {number}" if often > 1 else str(number) for number, often in runs)


def loss_label(loses_by: Mapping[str, Any] | None) -> str:
    """What a split loses by, in words."""
    if loses_by is None:
        return ""
    least = "at least " if loses_by.get("at_least") else ""
    if loses_by["term"] == "nodes lost":
        return f"with nodes lost: {loses_by['message']}"
    if loses_by["term"] == "memory":
        return f"{least}{human_bytes(loses_by['bytes'])} too much"
    if loses_by.get("seconds") is not None:
        return f"{time_label(loses_by['term'])} +{human_time(loses_by['seconds'])}"
    return str(loses_by.get("message") or "reserves more than there is")


def sweep_table(result: Mapping[str, Any]) -> Group:
    """What `rackcast plan --over` shows of *result*."""
    from rich.console import Group

    counted = result["counted"]
    line = f"{counted['cases']:,} cases: {counted['run']} run, {counted['known']} known, {counted['failed']} failed"
    table = _table(*result["over"], "step", "tokens/s", "peak", "USD / 1 M tokens", "verdict")
    ranked = sorted(result["cases"], key=lambda case: case["step_time_s"] or float("inf"))
    for case in ranked[:_MOST_CASES]:
        values = [str(case["settings"][path]) for path in result["over"]]
        if case["error"]:
            table.add_row(*values, "", "", "", "", case["error"], style=_STYLES["failed"])
            continue
        usd = case["usd_per_1m_tokens"]
        table.add_row(
            *values,
            human_time(case["step_time_s"]),
            human_count(case["tokens_per_s"]),
            human_bytes(case["peak_bytes"]),
            plain_number(usd, 4) if usd is not None else "-",
            case["verdict"] + (" *" if case["pareto"] else ""),
            style=_STYLES[case["verdict"]],
        )
    table.caption, table.caption_justify = "* on the front of time, cards and memory", "left"
    return Group(line, "", table, *_not_shown(ranked[_MOST_CASES:], result["file"]))


def _not_shown(cases: Sequence[Mapping[str, Any]], file: str) -> list[str]:
    """Where the *cases* are that a table has no room for, and why those of them failed that did."""
    if not cases:
        return []
    reasons = Counter(case["error"] for case in cases if case["error"])
    told = [f"{count:,} failed: {reason}" for reason, count in reasons.most_common(_MOST_REASONS)]
    return ["", f"{len(cases):,} more in {file}: duckdb -c \"from '{file}'\"", *told]


def _splits(plan: Mapping[str, Any], *, explain: bool) -> Table:
    table = _table("split", "", "step", "peak", "USD", "", "loses by")
    for column in table.columns[:2]:
        column.min_width = _LONGEST_WORD
    shown = [split for split in plan["splits"] if split["peak_bytes"] is not None]
    others = [split for split in plan["splits"] if split["verdict"] in ("pruned", "left")]
    for split in shown:
        usd = split["usd"]
        table.add_row(
            _degrees(split),
            _settings(split),
            _time(split),
            human_bytes(split["peak_bytes"]),
            f"{usd:,.2f}" if usd is not None else "-",
            _verdict(split),
            loss_label(split["loses_by"]),
            style=_STYLES[split["verdict"]],
        )
    for split in others[:_MOST_EXPLAINED] if explain else []:
        table.add_row(
            _degrees(split),
            _settings(split),
            _time(split),
            f"> {human_bytes(split['peak_at_least_bytes'])}",
            "",
            split["verdict"],
            loss_label(split["loses_by"]),
            style=_STYLES[split["verdict"]],
        )
    told = "Z ZeRO stage, R recomputes, r in part, xN sequences at once; USD of one step"
    table.caption = f"{told}; * on the front of time, cost, memory; (yours) as the scenario has it"
    table.caption_justify = "left"
    return table


def _verdict(split: Mapping[str, Any]) -> str:
    words = [split["verdict"], *(["(yours)"] if split["own"] else [])]
    return " ".join(words + (["*"] if split["pareto"] and split["verdict"] != "winner" else []))


def _degrees(split: Mapping[str, Any]) -> str:
    degrees = {axis: degree for axis, degree in split["parallel"].items() if axis not in _ORDER and degree > 1}
    return " ".join(f"{axis} {degree}" for axis, degree in degrees.items()) or "one card"


def _settings(split: Mapping[str, Any]) -> str:
    again, size = {"none": "", "full": " R"}.get(split["recompute"], " r"), split["micro_batch_sequences"]
    short = f"Z{split['zero']}{again}" + (f" x{size}" if size > 1 else "")
    return ", ".join([short, *_order_words(split)])


def _time(split: Mapping[str, Any]) -> str:
    step_s = split["step_time_s"]
    return human_time(step_s) if step_s is not None else f"> {human_time(split['step_time_at_least_s'])}"


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, column in enumerate(columns):
        text = number == 0 or column in ("", "loses by", "verdict")
        table.add_column(column, justify="left" if text else "right", overflow="fold")
    return table
