"""Cores of Kimi K3.1's mixers priced each way, beside what this project's kernels and PyTorch took on one H200.

Timings are the medians in kernels-2026-11-30.json, -30b.json, -30d.json and -30e.json, and of a public package in
kernels-public-2026-11-30.json; those of the published chain that the curve is made of, which are of an earlier version,
are in test_hardware_measured. Errors are stated as they are.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from model_operators import model

from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator
from simulator.model.architecture import KimiDeltaAttention, LatentAttention
from simulator.model.operator import Operator, Workload
from simulator.model.operators.layers import component_operators
from simulator.program.costs import Costs, Priced
from simulator.shipped import shipped

H200 = load_accelerator("h200-sxm", Path())
ALONE = {
    kind: tuple(c if c.compute else c.model_copy(update={"sustained": None}) for c in curves)
    for kind, curves in H200.curves.items()
}
"""Kernels that the clock bounds as they were timed, alone, while no other throttles it."""
COSTS = Costs(replace(H200, curves=ALONE), "eager")
MIXERS = [layer.mixer for layer in model("kimi-k3.1").layers]
DELTA = next(mixer for mixer in MIXERS if isinstance(mixer, KimiDeltaAttention))
SPARSE = next(mixer for mixer in MIXERS if isinstance(mixer, LatentAttention))
CORES = {"delta_rule": DELTA, "sparse_attention": SPARSE, "index_topk": SPARSE}


@cache
def measured(file: str) -> list[dict]:
    return json.loads(
        shipped("hardware_profiles", "measured", "h200-sxm", f"kernels-2026-11-30{file}.json").read_text()
    )["rows"]


def row(kernel: str, shape: list[int], file: str = "") -> dict:
    return next(r for r in measured(file) if r["kernel"] == kernel and r["shape"] == shape)


def operator(core: str, way: str, lengths: tuple[int, ...]) -> Operator:
    workload = Workload(lengths, core_kernels=way)
    return next(o for o in component_operators(CORES[core], 7168, workload) if o.name == core)


def priced(core: str, way: str, *lengths: int) -> tuple[Priced, Priced]:
    found = operator(core, way, lengths)
    forward = COSTS.forward(found, (), sum(lengths), None)
    return forward, COSTS.backward(found, (), sum(lengths), None, trained=False)


def passes(core: str, way: str, *lengths: int) -> tuple[float, float]:
    forward, backward = priced(core, way, *lengths)
    return forward.duration_ns / 1e9, backward.duration_ns / 1e9


@pytest.mark.parametrize("tokens", [1024, 8192, 32768])
def test_fused_delta_rule(tokens: int) -> None:
    forward, backward = passes("delta_rule", "fused", tokens)
    assert forward == pytest.approx(row("kda forward", [tokens, 96, 128], "b")["fused_s"], rel=0.02)
    assert backward == pytest.approx(row("kda backward", [tokens, 96, 128], "b")["fused_s"], rel=0.03)


@pytest.mark.parametrize("tokens", [8192, 32768])
def test_the_walk_of_eight_sequences_is_bound_by_traffic_and_that_of_one_by_its_steps(tokens: int) -> None:
    forward, _ = passes("delta_rule", "fused", *(tokens // 8,) * 8)
    assert forward == pytest.approx(row("kda forward", [tokens, 96, 128], "b")["fused_8_sequences_s"], rel=0.02)


@pytest.mark.parametrize(
    ("tokens", "forward_error", "backward_error"), [(512, 0.02, -0.07), (1024, 0.04, -0.14), (2048, 0.03, 0.03)]
)
def test_small_operators_of_the_delta_rule(tokens: int, forward_error: float, backward_error: float) -> None:
    found = row("kda, small operators", [tokens, 96, 128], "b")
    forward, backward = passes("delta_rule", "small_operators", tokens)
    assert forward / found["forward_s"] - 1 == pytest.approx(forward_error, abs=0.015)
    after = found["forward_and_backward_s"] - found["forward_s"]
    assert backward / after - 1 == pytest.approx(backward_error, abs=0.015)


@pytest.mark.parametrize("tokens", [512, 1024])
def test_launches_and_memory_of_the_small_operators(tokens: int) -> None:
    found = row("kda, small operators", [tokens, 96, 128], "b")
    forward, backward = (side.launches for side in priced("delta_rule", "small_operators", tokens))
    assert forward == pytest.approx(found["forward_launches"], rel=0.04)
    assert forward + backward == pytest.approx(found["forward_and_backward_launches"], rel=0.02)
    core = operator("delta_rule", "small_operators", (tokens,))
    held = sum(saved.bytes for saved in core.saved) + core.backward_workspace_bytes
    assert held == pytest.approx(found["peak_bytes"], rel=0.03)


@pytest.mark.parametrize(
    ("tokens", "forward_error", "backward_error"), [(1024, -0.07, 0.13), (8192, -0.07, 0.16), (32768, -0.07, 0.17)]
)
def test_the_published_chain_of_the_delta_rule_beside_our_own(
    tokens: int, forward_error: float, backward_error: float
) -> None:
    found = row("kda chain", [tokens, 96, 128], "d")
    forward, backward = passes("delta_rule", "partly_fused", tokens)
    assert forward / found["forward_s"] - 1 == pytest.approx(forward_error, abs=0.015)
    assert backward / found["backward_s"] - 1 == pytest.approx(backward_error, abs=0.015)


@pytest.mark.parametrize(("tokens", "forward_error", "both_error"), [(8192, 0.116, 0.193), (32768, 0.104, 0.187)])
def test_the_published_chain_of_the_delta_rule_is_faster_by_now(
    tokens: int, forward_error: float, both_error: float
) -> None:
    # fla-core 0.6.0.
    text = shipped("hardware_profiles", "measured", "h200-sxm", "kernels-public-2026-11-30.json").read_text()
    found = next(r for r in json.loads(text)["rows"] if r.get("shape") == [tokens, 96, 128])
    forward, backward = passes("delta_rule", "partly_fused", tokens)
    assert forward / found["public_forward_s"] - 1 == pytest.approx(forward_error, abs=0.01)
    assert (forward + backward) / found["public_forward_and_backward_s"] - 1 == pytest.approx(both_error, abs=0.01)


@pytest.mark.parametrize(("queries", "backward_error"), [(1024, 0.06), (8192, 0.017)])
def test_fused_sparse_attention(queries: int, backward_error: float) -> None:
    found = row("sparse attention", [queries, 8192, 2048], "e")
    forward, backward = passes("sparse_attention", "fused", queries)
    assert forward == pytest.approx(found["fused_s"], rel=0.03)
    assert backward / found["backward_fused_s"] - 1 == pytest.approx(backward_error, abs=0.01)


@pytest.mark.parametrize(("heads", "forward_error"), [(32, 0.05), (64, -0.003), (128, -0.013)])
def test_fused_sparse_attention_of_other_heads(heads: int, forward_error: float) -> None:
    # Heads that are none are zeros, whose products draw less power: 32 of 64 heads are done sooner than all.
    found, shape = row(f"sparse attention, {heads} heads", [8192, 8192, 2048], "e"), (heads, 576, 8192)
    forward = kernel_time(H200, "sparse_attention", found["flops"], 0.0, shape, alone=True)
    assert forward.seconds / found["fused_s"] - 1 == pytest.approx(forward_error, abs=0.005)
    backward = kernel_time(H200, "sparse_attention", found["backward_flops"], 0.0, shape, backward=True, alone=True)
    assert backward.seconds == pytest.approx(found["backward_fused_s"], rel=0.005)


def test_heads_past_the_last_of_a_block_take_as_long_as_others() -> None:
    half, whole = (
        kernel_time(H200, "sparse_attention", heads * 2.0**36, 0.0, (heads, 576, 8192), backward=True).seconds
        for heads in (48, 64)
    )
    assert half == pytest.approx(whole)


@pytest.mark.parametrize(("queries", "forward_error"), [(256, 0.0), (512, 0.09), (1024, 0.1)])
def test_small_operators_of_sparse_attention(queries: int, forward_error: float) -> None:
    # Backward, an addition of transposed operands takes twice what strided ones do.
    found = row("sparse attention, small operators", [queries, 8192, 2048], "b")
    forward, backward = passes("sparse_attention", "small_operators", queries)
    assert forward / found["forward_s"] - 1 == pytest.approx(forward_error, abs=0.015)
    assert backward / (found["forward_and_backward_s"] - found["forward_s"]) - 1 == pytest.approx(-0.21, abs=0.015)


@pytest.mark.parametrize(
    ("length", "error"), [(4096, 0.043), (8192, -0.059), (16384, -0.036), (32768, -0.012), (65536, 0.006)]
)
def test_the_fused_indexer_behind_dense_attention(length: int, error: float) -> None:
    found = row("dense attention and the indexer", [length], "d")["indexer_fp8_s"]
    assert passes("index_topk", "fused", length)[0] / found - 1 == pytest.approx(error, abs=0.004)


@pytest.mark.parametrize(
    ("heads", "keys", "error"),
    [(32, 8192, 0.0), (32, 32768, 0.07), (32, 131072, 0.17), (64, 8192, -0.03), (64, 32768, 0.03), (64, 131072, 0.06)],
)
def test_the_last_8192_queries_of_a_longer_sequence(heads: int, keys: int, error: float) -> None:
    # Of the same kernel on another day. Later queries choose among more keys, of which ever fewer beat those they have.
    found = row("indexer" if heads == 32 else "indexer, 64 heads", [8192, keys], "d")
    shape, flops = (heads, 128, keys), found["flops"] * 129 / 128
    time = kernel_time(H200, "indexer_choice", flops, 0.0, shape, "fp8", alone=True)
    assert (time.seconds + 4.4e-6) / found["fp8_s"] - 1 == pytest.approx(error, abs=0.005)


def test_small_operators_of_the_indexer() -> None:
    found = row("indexer, small operators", [8192, 8192], "b")["s"]
    assert passes("index_topk", "small_operators", 8192)[0] / found - 1 == pytest.approx(-0.065, abs=0.01)


@pytest.mark.parametrize(
    ("core", "way", "least"), [("delta_rule", "partly_fused", 1.8), ("delta_rule", "small_operators", 180)]
)
def test_fused_kernels_of_the_delta_rule_beat_the_others(core: str, way: str, least: float) -> None:
    fused, other = (sum(passes(core, one, 1024)) for one in ("fused", way))
    assert other / fused > least
