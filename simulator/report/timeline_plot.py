"""The timeline to zoom into: every stream of the telling ranks, drawn by the page's script at the width of the screen.

The page carries bars of all lanes as integers of a unit of time, each as the gap since the one before and its length;
the script draws of them what can be told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.report.closeup import closeups
from simulator.report.headline import left_out
from simulator.report.kinds import stream_label
from simulator.report.lanes import BAR_HEIGHT, groups_of, lanes_of
from simulator.report.merged_tasks import Bars, merged
from simulator.report.plots import Plot
from simulator.units import human_time

if TYPE_CHECKING:
    from simulator.forecast.timeline import Timeline

_MOST_BARS = 24_000
_FINEST_UNITS = 10**8
"""Of a step, at most: its times have eight digits."""
_LANE_PX, _AROUND_LANES_PX = 23, 96


def timeline_plot(timeline: Timeline, summary: Mapping[str, Any]) -> Plot:
    """The plot, whose *extra* has the bars and the stretches worth a look."""
    lanes = [lane for lane in lanes_of(timeline) if (timeline.end_ns[lane.tasks, lane.column] > 0).any()]
    windows = closeups(timeline)
    found, limit_ns = merged(timeline, lanes, windows, _MOST_BARS)
    end_s = float(timeline.end_ns.max()) / 1e9
    ranks = ", ".join(f"{rank.rank} ({rank.label})" for rank in timeline.ranks)
    alt = (
        f"Timeline of ranks {ranks} over {human_time(end_s)}: a row for each stream, a bar for each task, coloured by "
        "what it does; where a row of compute is empty, that rank waits."
    )
    stretches = [
        {"title": window.title, "from_s": window.start_ns / 1e9, "to_s": window.end_ns / 1e9} for window in windows
    ]
    notes = [left_out(summary)] if left_out(summary) else []
    if limit_ns:
        notes.append(
            f"outside the stretches named above, tasks shorter than {human_time(limit_ns / 1e9)} are drawn together"
        )
    extra = {"timeline": _bars(timeline, found), "windows": stretches, "notes": notes}
    height = _AROUND_LANES_PX + int(_LANE_PX * (lanes[-1].y + 2))
    return Plot("timeline", alt, height, [], _layout(timeline, found, end_s), extra)


def _layout(timeline: Timeline, found: Sequence[Bars], end_s: float) -> dict[str, Any]:
    lanes = [bars.lane for bars in found]
    tops = {lane.column: lane.y for lane in reversed(lanes)}
    heads = [
        {
            "text": f"<b>rank {timeline.ranks[column].rank}</b>, {timeline.ranks[column].label}",
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": top - 0.08,
            "yanchor": "bottom",
            "showarrow": False,
        }
        for column, top in tops.items()
    ]
    return {
        "barmode": "overlay",
        "hovermode": "closest",
        "dragmode": "zoom",
        "uirevision": "timeline",
        "annotations": heads,
        "xaxis": {"range": [0, end_s], "title": {"text": "seconds"}, "zeroline": False, "minallowed": 0,
                  "maxallowed": end_s},
        "yaxis": {
            "range": [lanes[-1].y + 1, -0.75],
            "tickvals": [lane.y + BAR_HEIGHT / 2 for lane in lanes],
            "ticktext": [stream_label(lane.stream) for lane in lanes],
            "fixedrange": True, "showgrid": False, "zeroline": False, "ticks": "",
        },
    }  # fmt: skip


def _bars(timeline: Timeline, found: Sequence[Bars]) -> dict[str, Any]:
    unit_ns = 1
    while timeline.end_ns.max() > _FINEST_UNITS * unit_ns:
        unit_ns *= 10
    shown = np.unique(np.concatenate([bars.task for bars in found]))
    groups, group = groups_of(timeline)
    names, name = _numbered([timeline.name[task] for task in shown.tolist()])
    phases, phase = _numbered([timeline.phase[task] for task in shown.tolist()])
    return {
        "unit_s": unit_ns / 1e9,
        "bar_height": BAR_HEIGHT,
        "groups": [{"label": one.label, "colour": one.colour} for one in groups],
        "names": names,
        "phases": phases,
        "group": group[shown].tolist(),
        "name": name,
        "phase": phase,
        "layer": timeline.layer[shown].tolist(),
        "micro_batch": timeline.micro_batch[shown].tolist(),
        "lanes": [_lane(bars, shown, unit_ns) for bars in found],
    }


def _lane(bars: Bars, shown: np.ndarray, unit_ns: int) -> dict[str, Any]:
    start, end = np.rint(bars.start_ns / unit_ns).astype(np.int64), np.rint(bars.end_ns / unit_ns).astype(np.int64)
    return {
        "y": bars.lane.y,
        "gap": (start - np.append(0, end[:-1])).tolist(),
        "length": (end - start).tolist(),
        "task": np.searchsorted(shown, bars.task).tolist(),
        "tasks": bars.tasks.tolist(),
        "shares": [_shares(bars, bar) for bar in np.flatnonzero(bars.tasks > 1).tolist()],
    }


def _shares(bars: Bars, bar: int) -> list[int]:
    """Of a bar of several tasks: groups, and the thousandth parts of its length that are spent on each, in turn."""
    parts = np.rint(1000 * bars.busy_ns[:, bar] / (bars.end_ns[bar] - bars.start_ns[bar])).astype(int)
    return [number for group in np.flatnonzero(parts).tolist() for number in (group, int(parts[group]))]


def _numbered(words: Sequence[str]) -> tuple[list[str], list[int]]:
    """The distinct *words*, and the position of each of them there."""
    distinct = {word: number for number, word in enumerate(dict.fromkeys(words))}
    return list(distinct), [distinct[word] for word in words]
