"""Writes the tables of docs/accuracy.md and README.md from reports/accuracy.json.

rackcast validate --json > reports/accuracy.json && python tools/accuracy.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "validation"
PAGE, FRONT = ROOT / "docs" / "accuracy.md", ROOT / "README.md"
START, END = "<!-- tables -->\n", "<!-- end of tables -->\n"
TITLES = {
    "step_time_s": ("step, s", "{:.4g}", 1.0),
    "tokens_per_s_per_accelerator": ("tokens/s each", "{:,.0f}", 1.0),
    "peak_allocated_bytes": ("allocated, GB", "{:.2f}", 1e9),
    "peak_reserved_bytes": ("reserved, GB", "{:.2f}", 1e9),
    "first_step_peak_allocated_bytes": ("allocated in the first step, GB", "{:.2f}", 1e9),
    "held_allocated_bytes": ("held between steps, GB", "{:.2f}", 1e9),
    "ttft_s": ("first token, ms", "{:,.1f}", 1e-3),
    "ttft_p50_s": ("median first token, ms", "{:,.1f}", 1e-3),
    "tpot_s": ("further tokens, ms", "{:,.2f}", 1e-3),
    "latency_s": ("requests, s", "{:.3g}", 1.0),
    "output_tokens_per_s_per_accelerator": ("tokens/s of answers each", "{:,.4g}", 1.0),
    "prompt_tokens_per_s_per_accelerator": ("tokens/s of prompts each", "{:,.4g}", 1.0),
}
SOURCES = {
    "h200": "own runs on one and two H200",
    "h200-held-out": "eight more of them, see below",
    "h200-optimizers": "seven with other optimizers",
    "h200-data-parallel": "nine with DDP, ZeRO-2 and FSDP2",
    "h200-swap": "eleven that keep, swap or recompute what one model saves, forecast first",
    "h200-parallel": "data, expert and tensor parallelism on two H200, forecast first",
    "h200-parallel-held-out": "eight more of them, forecast with what those taught",
    "h200-host": "the same with 128 tokens, where the host binds, forecast first",
    "stas00": "stas00: ZeRO-2 on 8 H200",
    "offload": "offloading: own run, stas00's ZeRO-3 on 8 H200, Megatron-Bridge's and torchtune's ladders",
    "simumax": "SimuMax: Megatron-LM on 8 B200",
    "vtrain": "vTrain: Megatron-DeepSpeed on up to 8 A100",
    "llm-foundry": "llm-foundry: FSDP of 2023 on 8 A100 and H100",
    "torchtune": "torchtune: fine-tuning on one and eight A100",
    "torchao": "torchao: Llama 3 8B and Llama 4 Scout, bf16 and fp8, on H100, B200 and MI300X",
    "torchtitan": "torchtitan: Llama 3.1 8B on 8 H100 held at 500 W, bf16 and fp8",
    "nemo": "NeMo 24.07: Llama 2 and 3 in fp8 on 8 H100",
    "zenflow": "DeepSpeed's ZeRO-2, ZeRO-Offload and ZenFlow on two A100",
    "megatron": "Megatron-LM and its Bridge: GPT, Moonlight, Qwen3-30B and Llama 3 8B, bf16 and fp8, on A100 to GB300",
    "serving-aic": "serving, further tokens: DeepSeek-V3, Llama 3.1 70B and Kimi K2.5 on H100 to B300",
    "serving-inferencex": "serving, further tokens: DeepSeek-R1 on H200 and B200, rows kept aside",
    "serving-trtllm": "serving, most tokens a second: Llama 3.3 70B, Qwen3-235B and DeepSeek-R1 on H100 and H200",
    "serving-wide": "serving over many nodes: DeepSeek-V3 on 32 and 72 H100 (LMSYS)",
    "serving-tiers": "serving from host memory and drives: ZeRO-Inference, KTransformers",
}
TIMES = (
    "step_time_s",
    "tokens_per_s_per_accelerator",
    "tpot_s",
    "output_tokens_per_s_per_accelerator",
    "prompt_tokens_per_s_per_accelerator",
)
Row = dict[str, Any]


def main() -> None:
    """Replace what stands between the two marks of the page."""
    cases: list[Row] = json.loads((ROOT / "reports" / "accuracy.json").read_text())["cases"]
    sources = {path.stem: _source(path) for path in CASES.rglob("*.yaml")}
    gone = sorted({case["id"] for case in cases} - set(sources))
    missing = sorted(set(SOURCES) - {sources[case["id"]] for case in cases if case["id"] in sources})
    if gone or missing:
        raise SystemExit(f"reports/accuracy.json is of other cases: it has {gone} too many, and none of {missing}")
    by_source: dict[str, list[Row]] = {}
    for case in cases:
        by_source.setdefault(sources[case["id"]], []).append(case)
    tables, front = [*_summary(by_source), *_details(by_source)], list(_front(by_source))
    _replace(PAGE, tables)
    _replace(FRONT, front)


def _replace(page: Path, lines: Iterable[str]) -> None:
    before, _, rest = page.read_text().partition(START)
    after = rest.partition(END)[2]
    page.write_text(before + START + "\n".join(lines) + "\n" + END + after)


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


def _front(by_source: dict[str, list[Row]]) -> Iterator[str]:
    yield "| runs | cases | median error of time | worst | median error of allocated memory | worst |"
    yield "|---|--:|--:|--:|--:|--:|"
    for source, title in SOURCES.items():
        figures = []
        for metrics in (TIMES, ("peak_allocated_bytes",)):
            errors = [abs(case["error"]) for case in by_source[source] if case["metric"] in metrics]
            figures += [f"{figure:.1%}" for figure in (median(errors), max(errors))] if errors else ["", ""]
        cases = len({case["id"] for case in by_source[source]})
        yield f"| {title} | {cases} | {' | '.join(figures)} |"


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
