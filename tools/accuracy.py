"""Writes the tables of docs/accuracy.md from reports/accuracy.json, which `rackcast validate --json` prints.

rackcast validate --json > reports/accuracy.json && python tools/accuracy.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "validation"
PAGE = ROOT / "docs" / "accuracy.md"
START, END = "<!-- tables -->\n", "<!-- end of tables -->\n"
TITLES = {
    "step_time_s": ("step, s", "{:.4g}", 1.0),
    "tokens_per_s_per_accelerator": ("tokens/s each", "{:,.0f}", 1.0),
    "peak_allocated_bytes": ("allocated, GB", "{:.2f}", 1e9),
    "peak_reserved_bytes": ("reserved, GB", "{:.2f}", 1e9),
}
Row = dict[str, Any]


def main() -> None:
    """Replace what stands between the two marks of the page."""
    cases: list[Row] = json.loads((ROOT / "reports" / "accuracy.json").read_text())["cases"]
    sources = {path.stem: _source(path) for path in CASES.rglob("*.yaml")}
    by_source: dict[str, list[Row]] = {}
    for case in cases:
        by_source.setdefault(sources[case["id"]], []).append(case)
    before, _, rest = PAGE.read_text().partition(START)
    after = rest.partition(END)[2]
    PAGE.write_text(before + START + "\n".join([*_summary(by_source), *_details(by_source)]) + "\n" + END + after)


def _source(path: Path) -> str:
    """The folder of a case below tests/validation; cases beside the folders are this project's own runs."""
    folder = path.parent.relative_to(CASES).as_posix()
    return "h200" if folder == "." else folder


def _summary(by_source: dict[str, list[Row]]) -> Iterator[str]:
    yield "| source | figure | cases | mean | median | worst |"
    yield "|---|---|--:|--:|--:|--:|"
    for source, cases in sorted(by_source.items()):
        for metric, (title, _, _) in TITLES.items():
            errors = [abs(case["error"]) for case in cases if case["metric"] == metric]
            if errors:
                figures = " | ".join(f"{figure:.1%}" for figure in (mean(errors), median(errors), max(errors)))
                yield f"| {source} | {title.split(',')[0]} | {len(errors)} | {figures} |"


def _details(by_source: dict[str, list[Row]]) -> Iterator[str]:
    for source, cases in sorted(by_source.items()):
        yield f"\n### {source}\n"
        yield "| case | figure | measured | forecast | error |"
        yield "|---|---|--:|--:|--:|"
        for case in cases:
            title, form, unit = TITLES[case["metric"]]
            measured, predicted = (form.format(case[key] / unit) for key in ("measured", "predicted"))
            yield f"| {case['id']} | {title} | {measured} | {predicted} | {case['error']:+.1%} |"


if __name__ == "__main__":
    main()
