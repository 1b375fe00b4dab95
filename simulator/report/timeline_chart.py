"""Streams of the telling ranks over the step, and two close-ups that show what overlaps and what waits.

The answer is the title. Drawn with matplotlib's objects and no pyplot, so nothing global is touched and threads may
draw. Every x coordinate is in seconds of simulated time; only the tick labels change their unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.report.closeup import Window, closeups
from simulator.report.headline import headline, left_out
from simulator.report.kinds import GROUPS, Group, stream_label
from simulator.report.lanes import BAR_HEIGHT, Lane, bars, busy_shares, groups_of, lanes_of, phase_runs
from simulator.report.paper import FAINT, INK, SIZE_INCHES, legend, time_ticks, titles
from simulator.units import human_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simulator.forecast.timeline import Timeline

_MOST_BARS = 400
"""Bars of one lane that a reader can still tell apart in the whole step; beyond, shares per bin."""
_BINS = 450
_LETTERS = "AB"
_SHORTEST_WAIT = 0.004
"""Of a close-up's width, the wait from which on it is hatched."""
_STRIP_Y = -2.75
"""Upper edge of the strip of phases in lines of text; the letters of the windows stand between it and the lanes."""


@dataclass(frozen=True, slots=True)
class _Scene:
    """What every panel draws."""

    timeline: Timeline
    lanes: list[Lane]
    groups: list[Group]
    group: np.ndarray
    """Per task: position in *groups*."""

    @property
    def line(self) -> float:
        """Height of a line of small text in the upper panel, in lanes."""
        return (self.lanes[-1].y + BAR_HEIGHT) / 22


def timeline_chart(timeline: Timeline, summary: Mapping[str, Any]) -> Figure:
    """Draw *timeline*; *summary* (the keys of `run --json`) gives the title."""
    from matplotlib.figure import Figure

    groups, group = groups_of(timeline)
    scene = _Scene(timeline, lanes_of(timeline), groups, group)
    windows = closeups(timeline)
    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    titles(figure, headline(summary), str(summary["scenario"]))
    legend(figure, [(g.colour, g.label) for g in GROUPS if g in groups])
    rows, columns = (2, len(windows)) if windows else (1, 1)
    grid = figure.add_gridspec(
        rows,
        columns,
        left=0.135,
        right=0.985,
        top=0.845,
        bottom=0.05,
        hspace=0.24,
        wspace=0.06,
        height_ratios=[1.15, 1][:rows],
    )
    _draw_whole(figure.add_subplot(grid[0, :]), scene, windows, left_out(summary))
    _name_lanes(figure.axes[0], scene)
    for i, window in enumerate(windows):
        _draw_window(figure.add_subplot(grid[1, i]), scene, window, _LETTERS[i])
    if windows:
        _name_lanes(figure.axes[1], scene)
    return figure


def _draw_whole(axes: Axes, scene: _Scene, windows: list[Window], missing: str) -> None:
    start_ns, end_ns = 0, int(scene.timeline.end_ns.max())
    crowded = [lane for lane in scene.lanes if len(lane.tasks) > _MOST_BARS]
    edges_ns = np.linspace(start_ns, end_ns, _BINS + 1)
    _dress(axes, scene, start_ns, end_ns, top=_STRIP_Y * scene.line)
    _draw_bars(axes, scene, ((lane, lane.tasks) for lane in scene.lanes if len(lane.tasks) <= _MOST_BARS))
    for lane in crowded:
        _draw_shares(axes, scene, lane, edges_ns)
    _draw_phases(axes, scene)
    _panel_title(axes, "Step" if missing else "Whole step", missing)
    if crowded:
        note = f"filled height: share of each {human_time((edges_ns[1] - edges_ns[0]) / 1e9)}"
        axes.annotate(
            note, (1, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", ha="right", va="bottom",
            fontsize=8.5, color=FAINT,
        )  # fmt: skip
    _mark_windows(axes, scene, windows)


def _mark_windows(axes: Axes, scene: _Scene, windows: list[Window]) -> None:
    from matplotlib.patches import Rectangle

    start, end = axes.get_xlim()
    edge = -0.25 * scene.line
    for i, window in enumerate(windows):
        left, right = window.start_ns / 1e9, window.end_ns / 1e9
        box = Rectangle((left, edge), right - left, axes.get_ylim()[0] - edge, fill=False, edgecolor=INK, lw=0.7)
        axes.add_patch(box)
        # Two windows may be a hair apart: their letters lean away from each other.
        x = (left + right) / 2 + (-0.003 if i else 0.003) * (end - start)
        style: dict[str, Any] = {
            "ha": "left" if i else "right",
            "va": "bottom",
            "fontsize": 10,
            "fontweight": "bold",
            "color": INK,
        }
        axes.text(x, edge, _LETTERS[i], **style)


def _draw_window(axes: Axes, scene: _Scene, window: Window, letter: str) -> None:
    inside = [(lane, _tasks_inside(scene.timeline, lane, window)) for lane in scene.lanes]
    _dress(axes, scene, window.start_ns, window.end_ns, top=-0.3)
    _draw_bars(axes, scene, inside)
    for lane, tasks in inside:
        _write_names(axes, scene, lane, tasks)
        if lane.stream == "compute":
            _write_waits(axes, scene, lane, tasks)
    _panel_title(axes, letter, window.title)


def _panel_title(axes: Axes, strong: str, words: str) -> None:
    style: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom", "color": INK}
    axes.annotate(strong, (0, 1), (0, 5), fontsize=10.5, fontweight="bold", **style)
    axes.annotate(words, (0, 1), (8 * len(strong) + 6, 5), fontsize=10, **style)


def _tasks_inside(timeline: Timeline, lane: Lane, window: Window) -> np.ndarray:
    start, end = timeline.start_ns[lane.tasks, lane.column], timeline.end_ns[lane.tasks, lane.column]
    inside: np.ndarray = lane.tasks[(end > window.start_ns) & (start < window.end_ns)]
    return inside


def _draw_bars(axes: Axes, scene: _Scene, tasks_of_lanes: Iterable[tuple[Lane, np.ndarray]]) -> None:
    """One collection per colour, however many bars: thousands are drawn in one call."""
    from matplotlib.collections import PolyCollection

    tasks_of_lanes = list(tasks_of_lanes)
    left, right = axes.get_xlim()
    thin = 4e-3 * (right - left)
    for i, group in enumerate(scene.groups):
        found = [bars(scene.timeline, lane, tasks[scene.group[tasks] == i]) for lane, tasks in tasks_of_lanes]
        # The library takes an array in one go, though its types do not say so.
        corners: Any = np.concatenate([np.zeros((0, 4, 2)), *found])
        if not len(corners):
            continue
        # A white rim parts neighbours of one colour; around a thin bar it would hide the bar.
        rims = np.where(corners[:, 2, 0] - corners[:, 0, 0] > thin, 0.5, 0.0)
        # Of widths that are all the same the library need not be told one by one.
        widths = rims if rims.any() else 0.0
        axes.add_collection(
            PolyCollection(corners, facecolors=group.colour, edgecolors="white", linewidths=widths, label=group.label),
            autolim=False,
        )


def _draw_shares(axes: Axes, scene: _Scene, lane: Lane, edges_ns: np.ndarray) -> None:
    shares = busy_shares(scene.timeline, lane, scene.group, len(scene.groups), edges_ns)
    floor = lane.y + BAR_HEIGHT
    top = np.zeros(len(edges_ns))
    for group, share in zip(scene.groups, shares, strict=True):
        if share.any():
            bottom, top = top, top + BAR_HEIGHT * np.append(share, share[-1])
            axes.fill_between(edges_ns / 1e9, floor - bottom, floor - top, step="post", color=group.colour, lw=0)


def _draw_phases(axes: Axes, scene: _Scene) -> None:
    """A strip above the first rank: which pass of which micro-batch its compute stream is in."""
    lane = next((lane for lane in scene.lanes if lane.stream == "compute"), None)
    runs = phase_runs(scene.timeline, lane) if lane else []
    left, right = axes.get_xlim()
    letters = [int((end - start) / 1e9 / (right - left) / 0.0054) - 1 for _, _, start, end in runs]
    words = [phase if number < 0 else f"{phase} {number}" for phase, number, _, _ in runs]
    if any(len(word) > room for (_, number, _, _), word, room in zip(runs, words, letters, strict=True) if number >= 0):
        words = [phase if number < 0 else f"{phase[0].upper()}{number}" for phase, number, _, _ in runs]
    spans = [(start_ns / 1e9, (end_ns - start_ns) / 1e9) for _, _, start_ns, end_ns in runs]
    colours = ["#E3E6E8" if phase == "forward" else "#CDD2D6" for phase, _, _, _ in runs]
    axes.broken_barh(spans, (_STRIP_Y * scene.line, scene.line), facecolor=colours, edgecolor="white", lw=0.8)
    for (x, width), word, room in zip(spans, words, letters, strict=True):
        if len(word) <= room:
            axes.text(
                x + width / 2, (_STRIP_Y + 0.5) * scene.line, word, ha="center", va="center", fontsize=7.5, color=INK
            )


def _write_names(axes: Axes, scene: _Scene, lane: Lane, tasks: np.ndarray) -> None:
    """The name of each task inside its bar, where it has room for it."""
    timeline = scene.timeline
    left, right = axes.get_xlim()
    start = np.maximum(left, timeline.start_ns[tasks, lane.column] / 1e9)
    end = np.minimum(right, timeline.end_ns[tasks, lane.column] / 1e9)
    letters = np.array([len(timeline.name[task]) for task in tasks.tolist()])
    room = end - start > (0.008 + 0.0098 * letters) * (right - left)
    for task, x in zip(tasks[room].tolist(), (start + end)[room] / 2, strict=True):
        axes.text(
            x, lane.y + BAR_HEIGHT / 2, timeline.name[task], ha="center", va="center_baseline",
            fontsize=6.5, color=scene.groups[scene.group[task]].ink, clip_on=True,
        )  # fmt: skip


def _write_waits(axes: Axes, scene: _Scene, lane: Lane, tasks: np.ndarray) -> None:
    """In the gap before each of *tasks*, in the cause's colour, what it waited for."""
    timeline = scene.timeline
    left, right = axes.get_xlim()
    before = dict(zip(lane.tasks[1:].tolist(), lane.tasks[:-1].tolist(), strict=True))
    causes = timeline.waited_for[tasks, lane.column]
    for task, cause in zip(tasks[causes >= 0].tolist(), causes[causes >= 0].tolist(), strict=True):
        earlier = before.get(task)
        start = max(left, 0.0 if earlier is None else timeline.end_ns[earlier, lane.column] / 1e9)
        end = min(right, timeline.start_ns[task, lane.column] / 1e9)
        if end - start < _SHORTEST_WAIT * (right - left):
            continue
        colour, name = scene.groups[scene.group[cause]].colour, f"waits: {timeline.name[cause]}"
        axes.broken_barh(
            [(start, end - start)],
            (lane.y, BAR_HEIGHT),
            facecolor="none",
            edgecolor=colour,
            hatch="////",
            lw=0,
            alpha=0.45,
        )
        if end - start > (0.008 + 0.0098 * len(name)) * (right - left):
            axes.text(
                (start + end) / 2, lane.y + BAR_HEIGHT / 2, name, ha="center", va="center_baseline", fontsize=6.5,
                color=INK, clip_on=True, bbox={"facecolor": "#F1F3F4", "edgecolor": "none", "pad": 1},
            )  # fmt: skip


def _dress(axes: Axes, scene: _Scene, start_ns: int, end_ns: int, top: float) -> None:
    """Axes, lane backgrounds and labels; empty lane shows as grey, which is waiting."""
    axes.set_xlim(start_ns / 1e9, end_ns / 1e9)
    axes.set_ylim(scene.lanes[-1].y + BAR_HEIGHT + 0.25, top)
    time_ticks(axes)
    axes.set_yticks([])
    axes.spines[["left", "right", "top"]].set_visible(False)
    for lane in scene.lanes:
        axes.axhspan(lane.y, lane.y + BAR_HEIGHT, color="#F1F3F4", lw=0, zorder=0)


def _name_lanes(axes: Axes, scene: _Scene) -> None:
    axes.set_yticks(
        [lane.y + BAR_HEIGHT / 2 for lane in scene.lanes], [stream_label(lane.stream) for lane in scene.lanes]
    )
    # Many lanes leave each little height: words shrink with it.
    low, high = axes.get_ylim()
    lane_points = axes.get_position().height * SIZE_INCHES[1] * 72 / abs(high - low)
    axes.tick_params(axis="y", length=0, labelsize=min(7.5, 0.95 * lane_points), labelcolor=FAINT, pad=3)
    for column, rank in enumerate(scene.timeline.ranks):
        heights = [lane.y for lane in scene.lanes if lane.column == column]
        axes.annotate(
            f"{fill(rank.label, 10)}\nrank {rank.rank}",
            (0, (heights[0] + heights[-1] + BAR_HEIGHT) / 2), xycoords=("axes fraction", "data"),
            xytext=(-82, 0), textcoords="offset points", ha="right", va="center", fontsize=8.5, color=INK,
        )  # fmt: skip
