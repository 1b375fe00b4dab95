from pathlib import Path

import pytest

from simulator.documents import InvalidDocument
from simulator.forecast.reading import open_any_scenario, read_scenario
from simulator.forecast.scenario_serving import ServingScenario

SERVED = """\
name: small
model: llama-3.1-8b
cluster: {node: hgx-h200, fabric: single-node, accelerators: 4}
parallel: {dp_replicate: 2, tp: 2}
serving:
  requests: {prompt_tokens: 1000, output_tokens: 100, concurrency: 8}
"""


@pytest.fixture
def served(tmp_path: Path) -> str:
    path = tmp_path / "served.yaml"
    path.write_text(SERVED)
    return str(path)


def _told(served: str, *changes: str) -> list[str]:
    with pytest.raises(InvalidDocument) as refused:
        open_any_scenario(served, changes)
    return [f"{problem.where}: {problem.message}" for problem in refused.value.problems]


def test_a_scenario_that_serves_is_read_as_such(served: str) -> None:
    document, _ = open_any_scenario(served)
    assert isinstance(document.content, ServingScenario)
    assert document.content.serving.requests.concurrency == 8


def test_a_scenario_trains_or_serves(served: str) -> None:
    assert _told(served, "training.sequence_length=4096") == [
        "serving: found beside training; allowed: one of them, what a scenario does"
    ]


def test_a_command_of_training_refuses_one_that_serves(served: str) -> None:
    with pytest.raises(InvalidDocument, match="allowed: fit, run, compare and validate"):
        read_scenario(served)


def test_what_only_training_splits_is_refused_with_the_reason(served: str) -> None:
    told = _told(served, "parallel.dp_shard=2", "parallel.cp=2")
    assert len(told) == 2
    assert told[0].startswith("parallel: dp_shard: weights that are served are not sharded")
    assert told[1].startswith("parallel: cp: prompts and caches")


def test_degrees_multiply_to_the_accelerators(served: str) -> None:
    assert _told(served, "parallel.dp_replicate=3") == [
        "parallel.dp_replicate: dp_replicate(3) * tp(2) * pp(1) = 6, but the cluster has 4 accelerators; "
        "nearest: dp_replicate 2"
    ]


def test_accelerators_that_prefill_are_not_among_those_that_decode(served: str) -> None:
    told = _told(served, "serving.prefill={accelerators: 2, parallel: {tp: 2}}")
    assert told == [
        "parallel.dp_replicate: dp_replicate(2) * tp(2) * pp(1) = 4, but 4 accelerators less 2 for prefill are 2; "
        "nearest: dp_replicate 1"
    ]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("{dp_replicate: 2, tp: 2, ep: 3}", "ep(3) * etp(1) = 3, which does not divide dp_replicate(2) * tp(2) = 4"),
        ("{dp_replicate: 4, ep: 2, etp: 2}", "ep(2) * etp(2) = 4, more than tp(1): rows that travel to experts"),
        ("{dp_replicate: 1, tp: 4, ep: 2}", "ep(2) * etp(1) = 2, and tp(4) does not divide it; nearest: 4"),
    ],
)
def test_ranks_that_share_experts_are_whole_tensor_parallel_groups(served: str, split: str, message: str) -> None:
    (told,) = _told(served, f"parallel={split}")
    assert message in told


def test_requests_come_in_one_way(served: str) -> None:
    assert _told(served, "serving.requests.rate_per_s=3") == [
        "serving.requests: found concurrency and rate_per_s; allowed: one of concurrency, rate_per_s and a trace"
    ]
    assert _told(served, "serving.requests.trace=some.csv") == [
        "serving.requests.prompt_tokens: found beside a trace, which says it; leave one out",
        "serving.requests.output_tokens: found beside a trace, which says it; leave one out",
        "serving.requests.concurrency: found beside a trace, which says it; leave one out",
    ]


def test_an_iteration_has_room_for_all_sequences_that_decode(served: str) -> None:
    (told,) = _told(served, "serving.max_batch_tokens=128")
    assert told.endswith("found 128, fewer than max_sequences(256), each of which decodes a token; nearest: 256")


def test_routing_has_no_steps(served: str) -> None:
    told = _told(served, "routing.drift=recorded", "routing.step=3")
    assert [line.split(":")[0] for line in told] == ["routing.drift", "routing.step"]


def test_more_accelerators_that_prefill_than_there_are_leave_none(served: str) -> None:
    told = _told(served, "serving.prefill={accelerators: 8, parallel: {dp_replicate: 8}}")
    assert told[0].endswith("but 4 accelerators less 8 for prefill are -4; nearest: dp_replicate 1 on 2")


def test_how_prompts_are_computed_is_refused_where_they_come_computed(served: str) -> None:
    told = _told(served, "serving.requests.prefilled=true", "serving.prefill_code=fused", "serving.front_end.token_s=0")
    reason = "found beside requests.prefilled, whose prompts come computed; leave it out"
    assert told == [f"serving.prefill_code: {reason}", f"serving.front_end: {reason}"]


def test_prompts_wait_for_others_only_beside_sequences_that_decode(served: str) -> None:
    assert _told(served, "serving.batch_wait.iterations=20", "serving.batching=prefill_first") == [
        "serving.batch_wait: found beside batching: prefill_first, which takes prompts as they come; allowed: mixed"
    ]
