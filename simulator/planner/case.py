"""A case: one resolved scenario to forecast, known by what it says and by the files and code behind its figures."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import simulator
from simulator.documents import InvalidDocument
from simulator.forecast.assembly import assemble_job, passes
from simulator.forecast.errors import Refused
from simulator.forecast.fitting import held_by
from simulator.forecast.forecast import summarize
from simulator.forecast.memory import verdict_of
from simulator.forecast.scenario import Scenario
from simulator.forecast.uncollected import uncollected
from simulator.model.config import ConfigError
from simulator.program.job import Job
from simulator.program.training_step import TrainingStep
from simulator.shipped import shipped
from simulator.version import __version__

Row = dict[str, Any]
"""What a table of results keeps of a case: numbers and text under the names of `COLUMNS`."""
COLUMNS = {
    "key": "text",
    "settings": "text",
    "verdict": "text",
    "error": "text",
    "step_time_s": "number",
    "step_time_p10_s": "number",
    "step_time_p90_s": "number",
    "tokens_per_s": "number",
    "model_flops_utilization": "number",
    "peak_bytes": "number",
    "capacity_bytes": "number",
    "usd_per_step": "number",
    "usd_per_1m_tokens": "number",
    "accelerators": "number",
    "time": "text",
    "campaign": "text",
}
"""Names and types; *settings*, *time* and *campaign* are JSON, the last one null without a campaign."""
_DECIDING = ("engine", "forecast", "hardware", "model", "parallel", "program", "routing", "units.py")
"""Parts of the package that decide a forecast."""


Verdicts = tuple[Literal["fits", "tight"], ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One forecast to make."""

    scenario: Scenario
    folder: str
    """Where the scenario's relative names start."""
    settings: str
    """What sets it apart from other cases, as a JSON object."""
    key: str
    only: Verdicts = ()
    """Account for memory first, and simulate only where it comes to one of these; none: simulate in any case."""


def make_case(scenario: Scenario, folder: Path, settings: dict[str, Any], version: str, *, only: Verdicts = ()) -> Case:
    """The case of *scenario* under *version* of the data (:func:`data_version`)."""
    told = scenario.model_dump_json(exclude={"name", "description", "measured"})
    key = hashlib.sha256(f"{version}\n{folder.resolve()}\n{only}\n{told}".encode()).hexdigest()[:32]
    return Case(scenario, str(folder), json.dumps(settings), key, only)


def data_version(folder: Path) -> str:
    """A hash of the shipped data, of the files beside the scenario, and of the code that turns them into figures."""
    package = Path(simulator.__file__).parent
    code = [path for name in _DECIDING for path in sorted((package / name).rglob("*.py"))] + [package / "units.py"]
    data = [path for home in ("hardware_profiles", "scenarios") for path in sorted(shipped(home).rglob("*.*"))]
    beside = [path for ending in ("yaml", "json", "csv", "jsonl") for path in sorted(folder.glob(f"*.{ending}"))]
    digest = hashlib.sha256(__version__.encode())
    for path in (*code, *data, *beside):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def run_case(case: Case) -> Row:
    """Forecast *case*. Input that does not go together makes a row with its message, and so does a fault."""
    try:
        with uncollected():
            return _row(case)
    except (Refused, InvalidDocument, ConfigError, OSError) as error:
        return failed_row(case.key, case.settings, str(error))
    except Exception as error:  # noqa: BLE001, one case of many must not end the others
        return failed_row(case.key, case.settings, f"fault in rackcast: {type(error).__name__}: {error}")


def _row(case: Case) -> Row:
    lowering = TrainingStep(assemble_job(case.scenario, Path(case.folder)))
    if case.only:
        verdict, peak_bytes = verdict_of(*held_by(lowering, passes(case.scenario)))
        if verdict not in case.only:
            return _row_of_memory(case, verdict, peak_bytes, lowering.job)
    return summary_row(case, summarize(case.scenario, Path(case.folder), lowering))


def _row_of_memory(case: Case, verdict: str, peak_bytes: float, job: Job) -> Row:
    capacity_bytes = job.cluster.accelerator.hbm_capacity_bytes
    told = {"verdict": verdict, "peak_bytes": peak_bytes, "capacity_bytes": capacity_bytes}
    return failed_row(case.key, case.settings, None) | told


def summary_row(case: Case, summary: dict[str, Any]) -> Row:
    """The row of a forecast."""
    hbm, step = summary["memory"]["hbm"], summary["step_time_s"]
    return {
        "key": case.key,
        "settings": case.settings,
        "verdict": summary["verdict"],
        "error": None,
        "step_time_s": step["p50"],
        "step_time_p10_s": step["p10"],
        "step_time_p90_s": step["p90"],
        "tokens_per_s": summary["tokens_per_s"],
        "model_flops_utilization": summary["model_flops_utilization"],
        "peak_bytes": hbm["peak_bytes"],
        "capacity_bytes": hbm["capacity_bytes"],
        "usd_per_step": summary["cost"]["usd_per_step"],
        "usd_per_1m_tokens": summary["cost"]["usd_per_1m_tokens"],
        "accelerators": float(summary["engine"]["ranks"]),
        "time": json.dumps(summary["time"]),
        "campaign": json.dumps(summary.get("campaign")),
    }


def failed_row(key: str, settings: str, message: str | None) -> Row:
    """The row of a case that has no forecast."""
    return dict.fromkeys(COLUMNS) | {"key": key, "settings": settings, "verdict": "failed", "error": message}
