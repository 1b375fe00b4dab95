"""Sweeps over values: `--over parallel.ep=8,16,32` once for each path, and every combination is a case."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import product
from typing import Any

from simulator.documents import InvalidDocument, Problem
from simulator.forecast.reading import find_scenario, open_scenario
from simulator.planner.case import Case, Row, data_version, failed_row, make_case
from simulator.planner.pareto import front
from simulator.planner.store import Store
from simulator.planner.sweep import Heard, run_cases
from simulator.planner.workers import Workers

_OPENING, _CLOSING = "[{", "]}"
_FITTING = ("fits", "tight")


def sweep(
    name: str, changes: Sequence[str], over: Sequence[str], store: Store, workers: Workers, hear: Heard | None = None
) -> dict[str, Any]:
    """Forecast scenario *name* with *changes* for every combination of the values *over*; rows go to *store*.

    A combination that is not valid is a failed case; *pareto* are those that fit and that no other one betters in
    everything. Raise :exc:`InvalidDocument` where *over* cannot be read.
    """
    axes = _axes(over)

    version = data_version(find_scenario(name).parent)
    cases: list[Case] = []
    refused: list[Row] = []
    for values in product(*axes.values()):
        settings = dict(zip(axes, values, strict=True))
        made = _case(name, [*changes, *(f"{path}={value}" for path, value in settings.items())], settings, version)
        if isinstance(made, Case):
            cases.append(made)
        else:
            refused.append(made)
    store.add(row for row in refused if row["key"] not in store.rows)
    known = len({case.key for case in cases} & set(store.rows))
    rows = run_cases(cases, store, workers, hear)
    store.join()
    listed = [_listed(rows[case.key] | {"settings": case.settings}) for case in cases]
    listed += [_listed(row) for row in refused]
    on = set(front((number, *_goods(case)) for number, case in enumerate(listed) if case["verdict"] in _FITTING))
    listed = [case | {"pareto": number in on} for number, case in enumerate(listed)]
    counted = {
        "cases": len(listed),
        "run": len(rows) - known,
        "known": known,
        "failed": sum(row["verdict"] == "failed" for row in listed),
    }
    return {"scenario": name, "over": axes, "cases": listed, "counted": counted, "file": str(store.file)}


def _goods(case: Row) -> tuple[float, ...]:
    """What should be small: seconds and accelerator-seconds a token, bytes."""
    return 1 / case["tokens_per_s"], case["accelerators"] / case["tokens_per_s"], case["peak_bytes"]


def _axes(over: Sequence[str]) -> dict[str, list[str]]:
    """Values by path. Raise :exc:`InvalidDocument` with all that is wrong."""
    axes: dict[str, list[str]] = {}
    problems = []
    for text in over:
        path, equals, values = (part.strip() for part in text.partition("="))
        found = [value.strip() for value in _pieces(values)]
        if not equals or not path or not all(found):
            problems.append(Problem(f"--over {text}", None, "", "expected path=a,b,c, such as parallel.ep=8,16,32"))
        elif path in axes:
            problems.append(Problem(f"--over {text}", None, "", f"found {path} more than once; allowed: once"))
        else:
            axes[path] = list(dict.fromkeys(found))
    if problems:
        raise InvalidDocument(problems)
    return axes


def _pieces(text: str) -> list[str]:
    """*text* cut at its commas, those inside brackets left alone."""
    pieces, depth = [""], 0
    for letter in text:
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if letter == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return pieces


def _case(name: str, changes: Sequence[str], settings: dict[str, str], version: str) -> Case | Row:
    """The case of one combination, or the row of one that is not valid."""
    try:
        document, folder = open_scenario(name, changes)
    except InvalidDocument as error:
        key = hashlib.sha256(f"{version}\n{name}\n{list(changes)}".encode()).hexdigest()[:32]
        return failed_row(key, json.dumps(settings), "; ".join(problem.message for problem in error.problems))
    return make_case(document.content, folder, settings, version)


def _listed(row: Row) -> dict[str, Any]:
    """A row as the JSON answer gives it."""
    parsed = {name: json.loads(row[name]) for name in ("settings", "time", "campaign") if row[name]}
    return {name: value for name, value in row.items() if name != "key"} | parsed
