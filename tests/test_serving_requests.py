import time
from pathlib import Path

import pytest

from simulator.documents import InvalidDocument
from simulator.forecast.scenario_serving import Requests
from simulator.forecast.serving.requests import requests


def test_ten_requests_for_each_of_a_concurrency() -> None:
    found = requests(Requests(prompt_tokens=100, output_tokens=20, concurrency=3), Path())
    assert len(found) == 30
    assert {(one.arrival_ns, one.prompt_tokens, one.output_tokens) for one in found} == {(0, 100, 20)}


def test_lengths_lie_evenly_between_the_shortest_and_the_longest() -> None:
    asked = Requests(prompt_tokens=1000, output_tokens=100, least_share=0.8, concurrency=1000)
    prompts = [one.prompt_tokens for one in requests(asked, Path())]
    assert (min(prompts), max(prompts)) == (800, 1000)
    # Of 10,000 draws from 800 to 1,000, with a standard deviation of 58, the mean is 900 to 3 x 0.58.
    assert abs(sum(prompts) / len(prompts) - 900) < 1.8


def test_requests_come_at_a_rate() -> None:
    asked = Requests(prompt_tokens=10, output_tokens=10, rate_per_s=50, count=10_000)
    arrivals = [one.arrival_ns for one in requests(asked, Path())]
    assert arrivals == sorted(arrivals)
    # 10,000 arrivals take 200 s, to three times 1 %.
    assert abs(arrivals[-1] / 1e9 - 200) < 6


def test_a_seed_decides_all_chance() -> None:
    asked = Requests(prompt_tokens=1000, output_tokens=100, least_share=0.5, rate_per_s=5)
    other = asked.model_copy(update={"seed": 1})
    assert requests(asked, Path()) == requests(asked, Path()) != requests(other, Path())


def test_at_least_the_last_token_of_a_prompt_is_computed() -> None:
    asked = Requests(prompt_tokens=10, output_tokens=1, cached_share=0.99, concurrency=1)
    assert {one.cached_tokens for one in requests(asked, Path())} == {9}


def test_azures_traces_are_read(tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:47.500000,20,3\n2023-11-16 18:15:46.000000,374,44\n"
    )
    found = requests(Requests(trace="azure.csv"), tmp_path)
    assert [(one.arrival_ns, one.prompt_tokens, one.output_tokens) for one in found] == [
        (0, 374, 44),
        (1_500_000_000, 20, 3),
    ]


def test_times_without_a_zone_are_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The clocks of Berlin went from 2:00 to 3:00 that night.
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    (tmp_path / "night.csv").write_text(head + "2024-03-31 01:30:00,9,9\n2024-03-31 03:30:00,9,9\n")
    (tmp_path / "zones.csv").write_text(head + "2024-03-31 01:30:00,9,9\n2024-03-31 03:30:00+02:00,9,9\n")
    found = [requests(Requests(trace=name), tmp_path)[-1].arrival_ns for name in ("night.csv", "zones.csv")]
    monkeypatch.undo()
    time.tzset()
    assert found == [2 * 3_600_000_000_000, 0]


def test_mooncakes_traces_are_read(tmp_path: Path) -> None:
    (tmp_path / "mooncake.jsonl").write_text(
        '{"timestamp": 27482, "input_length": 1030, "output_length": 52, "hash_ids": [46, 47]}\n'
        '{"timestamp": 30535, "input_length": 700, "output_length": 26, "hash_ids": [46, 99]}\n'
    )
    first, second = requests(Requests(trace="mooncake"), tmp_path)
    assert (second.arrival_ns, second.prompt_tokens, first.hash_ids) == (3_053_000_000, 700, (46, 47))
    assert len(requests(Requests(trace="mooncake", count=1), tmp_path)) == 1


def test_all_bad_lines_of_a_trace_are_told_with_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"timestamp": 1}\n{"timestamp": 1, "input_length": -4, "output_length": 1}\n')
    with pytest.raises(InvalidDocument) as refused:
        requests(Requests(trace="bad"), tmp_path)
    assert [(problem.line, problem.message) for problem in refused.value.problems] == [
        (1, "has no 'input_length'; expected timestamp, input_length, output_length"),
        (2, "is no request: found -4 tokens"),
    ]


def test_a_trace_without_requests_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    with pytest.raises(InvalidDocument, match="holds no requests"):
        requests(Requests(trace="empty"), tmp_path)


def _refused(name: str, text: str, tmp_path: Path) -> list[tuple[int | None, str]]:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidDocument) as refused:
        requests(Requests(trace=name), tmp_path)
    return [(problem.line, problem.message) for problem in refused.value.problems]


def test_what_is_too_large_to_read_is_told(tmp_path: Path) -> None:
    head, large = "TIMESTAMP,ContextTokens,GeneratedTokens\n", "9" * 131_073
    assert _refused("row.csv", f"{head}2024-03-31,{large},9\n", tmp_path) == [
        (2, "is no request: field larger than field limit (131072)")
    ]
    assert _refused("head.csv", large, tmp_path) == [(1, "is no header: field larger than field limit (131072)")]
    assert _refused("deep.jsonl", "[" * 200_000, tmp_path) == [(1, "is no request: nested too deeply")]
