"""The whole run, told under the step that it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.units import DAY_S, human_bytes, human_count, human_time, plain_number

_LOST = {
    "checkpoints_s": "checkpoints",
    "rework_s": "work done again",
    "restarts_s": "restarts",
    "waiting_s": "waiting for nodes in repair",
}


def campaign_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What `rackcast run` says of *found*, the key "campaign" of `run --json`: words, and what they stand for."""
    wall, usd, checkpoint = found["wall_s"], found["usd"], found["checkpoint"]
    apart, many, restart = days(found["mtbf_s"]), f"{found['failures']:.0f}", human_time(found["restart_s"])
    verdict = f"; misses its {' and its '.join(found['misses'])}" if found["misses"] else ""
    pace = checkpoint["pace_meanwhile"]
    meanwhile = f", steps at {100 * pace:.0f} % of their pace meanwhile" if pace < 1 else ""
    rows = [
        (
            "whole run",
            f"{days(wall['p50'])} (p10 {days(wall['p10'])}, p90 {days(wall['p90'])}) for {found['steps']:,} steps of "
            f"{human_count(found['tokens'])} tokens{verdict}",
        ),
        ("goodput", f"{100 * found['goodput']:.1f} % of {days(wall['p50'])}; {_losses(found)}"),
        (
            "checkpoints",
            f"{human_bytes(checkpoint['bytes'])} every {human_time(checkpoint['interval_s'])}, stall "
            f"{human_time(checkpoint['stall_s'])}, safe after {human_time(checkpoint['safe_after_s'])}{meanwhile}",
        ),
        ("failures", f"one in {apart}, {many} in all, {restart} to restart"),
    ]
    if usd["p50"] is not None:
        rows.append(("cost of it", f"{plain_number(usd['p50'], 4)} USD for {found['accelerators']:,} accelerators"))
    return rows


def days(seconds: float) -> str:
    """*seconds* as people say how long a run takes: '12.3 days', '5.2 h'."""
    return f"{seconds / DAY_S:.3g} days" if seconds >= 2 * DAY_S else human_time(seconds)


def _losses(found: Mapping[str, Any]) -> str:
    whole = sum(found["lost"].values()) + found["ideal_s"]
    told = [f"{_LOST[key]} {100 * s / whole:.1f} %" for key, s in found["lost"].items() if s >= 0.0005 * whole]
    return ", ".join(told) or "nothing lost"
