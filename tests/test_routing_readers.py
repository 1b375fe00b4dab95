import base64
import io
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from simulator.routing import RoutingError, read_trace
from simulator.routing.trace import Trace

SAVED = Path(__file__).parent / "traces"


def refused(path: Path | str) -> str:
    with pytest.raises(RoutingError) as caught:
        read_trace(path)
    (problem,) = caught.value.problems
    return f"{problem.where}: {problem.message}".removeprefix(": ")


def counts(trace: Trace) -> list[list[float]]:
    found: list[list[float]] = trace.table.counts.tolist()
    return found


def safetensors(path: Path, **arrays: np.ndarray) -> Path:
    names = {"int64": "I64", "int32": "I32"}
    header, data = {}, b""
    for name, array in arrays.items():
        end = len(data) + array.nbytes
        header[name] = {"dtype": names[array.dtype.name], "shape": array.shape, "data_offsets": [len(data), end]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def lines(path: Path, *records: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def megatron(step: int, layer: int, rank: int, *picks: list[int], **more: object) -> dict[str, object]:
    where = {"step": step, "stage": "pre_dispatch", "block": "decoder", "layer": layer, "rank": rank}
    return {**where, "num_tokens": len(picks), "topk": 2, "top_indices": list(picks), **more}


def test_sglang_stat():
    trace = read_trace(SAVED / "stat.pt")
    assert trace.counts.shape == (2, 1, 3, 6)
    assert trace.counts[1, 0, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert (trace.layers, trace.first_steps, trace.picks) == ((1, 2, 3), (0, 1), None)


def test_sglang_per_pass_of_two_ranks_by_expert():
    trace = read_trace(SAVED / "per_pass")
    # Slots 0 and 6 hold expert 0 and got 1 and 7 rows, slots 5 and 7 hold expert 5 and got 6 and 8.
    assert trace.counts[0, 0, 0].tolist() == [8, 2, 3, 4, 5, 14]
    assert trace.counts[1, 1, 2].tolist() == [240, 60, 90, 120, 150, 420]
    assert (trace.first_steps, trace.sources) == ((7, 8), (0, 1))


def test_sglang_per_token_by_expert():
    trace = read_trace(SAVED / "per_token.pt")
    assert counts(trace) == [[2, 1, 1, 1, 1, 2]] * 3
    assert trace.picks is not None
    assert sorted(trace.picks[0].tolist()) == [[0, 1, -1], [0, 5, -1], [2, 5, -1], [3, 4, -1]]
    assert (trace.first_steps, trace.sources, trace.layers) == ((3,), (1,), (1, 2, 3))


def test_megatron_of_two_ranks(tmp_path):
    lines(tmp_path / "router_trace_rank0.jsonl", megatron(0, 2, 0, [0, 1], [0, 3]), megatron(1, 2, 0, [3, 2]))
    lines(tmp_path / "router_trace_rank1.jsonl", megatron(0, 2, 1, [1, 3]), megatron(0, 2, 1, [9, 9], mtp_idx=0))
    trace = read_trace(tmp_path)
    assert trace.counts[:, :, 0].tolist() == [[[2, 1, 0, 1], [0, 1, 0, 1]], [[0, 0, 1, 1], [0, 0, 0, 0]]]
    assert (trace.layers, trace.sources) == ((2,), (0, 1))
    assert trace.source_share.tolist() == [0.75, 0.25]


def test_megatron_lines_in_other_spacing_and_order(tmp_path):
    path = tmp_path / "rank3.jsonl"
    path.write_text('{"top_indices" : [[0, 1] , [2,1 ] ], "step":0,"layer":1,"rank":3,"num_tokens":2,"topk":2}\n\n')
    assert counts(read_trace(path)) == [[1, 2, 1]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_tokens": 3}, "has 4 top_indices, expected 3 tokens * 2"),
        ({"layer": -1}, "layer: found -1, expected a whole number from 0 to 999"),
        ({"step": "0"}, 'step: found "0", expected a whole number from 0'),
        ({"top_indices": [[0, 1], [2, 10_000]]}, "has top_indices from 0 to 10000, expected 0 to 9999"),
        ({"top_indices": [[0, 1.5], [2, 1]]}, "is not a JSON object with top_indices as lists of whole numbers"),
        ({"top_indices": [[0, 1], ["a", 1]]}, "is not a JSON object with top_indices as lists of whole numbers"),
        ({"top_indices": "x"}, "is not a JSON object with top_indices as lists of whole numbers"),
        ({"top_indices": None}, "is not a JSON object with top_indices as lists of whole numbers"),
    ],
)
def test_a_wrong_megatron_line(tmp_path, change, message):
    assert message in refused(lines(tmp_path / "t.jsonl", megatron(0, 2, 0, [0, 1], [0, 3]) | change))


def test_a_megatron_line_that_breaks_off_is_named(tmp_path):
    path = lines(tmp_path / "t.jsonl", megatron(0, 1, 0, [0, 1]), megatron(0, 2, 0, [0, 1]))
    path.write_text(path.read_text()[:-20])
    with pytest.raises(RoutingError, match=r"t\.jsonl:2: is not a JSON object"):
        read_trace(path)


def test_vllm_array_without_a_name(tmp_path):
    np.save(tmp_path / "routed.npy", np.array([[[0, 1], [2, 3]], [[0, 2], [2, 1]]], dtype=np.int16))
    trace = read_trace(tmp_path / "routed.npy")
    assert counts(trace) == [[2, 1, 1, 0], [0, 1, 2, 1]]
    assert not trace.numbered


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_vllm_arrays_of_prompt_and_answer(tmp_path, save):
    prompt = np.arange(24, dtype=np.int16).reshape(6, 2, 2) % 4
    save(tmp_path / "r.npz", prompt_routed_experts=prompt, routed_experts=prompt[:1], other=np.ones(3))
    trace = read_trace(tmp_path / "r.npz")
    assert trace.counts.sum(axis=(2, 3)).ravel().tolist() == [24, 4]


def test_vllm_responses_in_lines_and_as_one_indented_object(tmp_path):
    response = {"prompt_routed_experts": [[[0, 1]], [[1, 2]]], "choices": [{"routed_experts": [[[2, 3]]]}, {"x": 1}]}
    expected = [[1.0, 2.0, 2.0, 1.0]]
    assert counts(read_trace(lines(tmp_path / "two.jsonl", response, response))) == [[2, 4, 4, 2]]
    (tmp_path / "one.json").write_text(json.dumps(response, indent=2))
    assert counts(read_trace(tmp_path / "one.json")) == expected


def base64_npy(array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


def test_vllm_responses_with_arrays_in_base64_and_a_dense_layer(tmp_path):
    # Three tokens of two layers, the first of which has no router.
    routed = np.array([[[0, 0], [1, 2]], [[0, 0], [2, 0]], [[0, 0], [3, 2]]], dtype=np.uint8)
    trace = read_trace(lines(tmp_path / "r.jsonl", {"choices": [{"routed_experts": base64_npy(routed)}]}))
    assert (trace.layers, counts(trace)) == ((1,), [[1, 1, 3, 1]])


def test_wrong_vllm_responses_in_base64(tmp_path):
    whole = base64.b64decode(base64_npy(np.zeros((2, 1, 2), dtype=np.uint16)))
    huge = whole.replace(b"(2, 1, 2), }       ", b"(99999999, 1, 2), }")
    for text, message in (
        ("?", "routed_experts: found a text that is not base64"),
        (base64.b64encode(b"gASVCgAAAAAA").decode(), "routed_experts: cannot be read: the magic string is not correct"),
        (base64.b64encode(whole[:-1]).decode(), "routed_experts: cannot be read: it breaks off"),
        (base64.b64encode(huge).decode(), "routed_experts: cannot be read: it breaks off"),
        (base64_npy(np.zeros((1, 1, 2))), "routed_experts: found float64 of shape (1, 1, 2), expected whole numbers"),
    ):
        assert message in refused(lines(tmp_path / "r.jsonl", {"choices": [{"routed_experts": text}]}))


@pytest.mark.parametrize(
    ("routed", "message"),
    [
        ([[[0, 1]], [[1]]], "routed_experts: found no lists of whole numbers, equally long at each depth"),
        ([[0.5]], "routed_experts: found no lists of whole numbers"),
        ([[0, 1]], "routed_experts: found int64 of shape (1, 2), expected whole numbers [tokens, at most 1000 layers"),
        ([[[-2]]], "routed_experts: found experts from -2 to -2, expected 0 to 9999, or -1 for none"),
    ],
)
def test_wrong_vllm_responses(tmp_path, routed, message):
    assert message in refused(lines(tmp_path / "r.jsonl", {"choices": [{"routed_experts": routed}]}))


def test_arrays_of_objects_are_refused(tmp_path):
    np.save(tmp_path / "r.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert "it holds object in C order, expected numbers in C order" in refused(tmp_path / "r.npy")


def test_tensorrt_llm_counts_of_two_ranks(tmp_path):
    (tmp_path / "meta_info.json").write_text(json.dumps({"num_experts": 4, "num_experts_per_token": 2}))
    safetensors(tmp_path / "rank0.safetensors", **{"100_3": np.array([1, 2, 3, 0]), "101_3": np.array([4, 0, 0, 0])})
    safetensors(tmp_path / "rank1.safetensors", **{"100_3": np.array([0, 0, 0, 5])})
    trace = read_trace(tmp_path)
    assert trace.counts[:, :, 0].tolist() == [[[1, 2, 3, 0], [0, 0, 0, 5]], [[4, 0, 0, 0], [0, 0, 0, 0]]]
    assert (trace.first_steps, trace.sources, trace.layers) == ((100, 101), (0, 1), (3,))


def test_tensorrt_llm_prefers_tokens_to_their_counts(tmp_path):
    safetensors(tmp_path / "rank0.safetensors", **{"0_1": np.array([9, 9, 9])})
    safetensors(tmp_path / "rank0_raw.safetensors", **{"0_1": np.array([[0, 1], [0, 2]], dtype=np.int32)})
    trace = read_trace(tmp_path)
    assert counts(trace) == [[2, 1, 1]]
    assert trace.picks is not None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"3": np.array([1])}, "found an array '3', expected ITERATION_LAYER"),
        ({"0_1": np.array([[[1]]])}, "0_1: found int64 of shape (1, 1, 1), expected counts of its experts"),
        ({"0_1": np.array([-1, 2])}, "0_1: found counts from -1 to 2, expected 0 to"),
    ],
)
def test_wrong_tensorrt_llm_arrays(tmp_path, arrays, message):
    assert message in refused(safetensors(tmp_path / "rank0.safetensors", **arrays))


def test_tensorrt_llm_counts_must_fit_the_meta_file(tmp_path):
    (tmp_path / "meta_info.json").write_text('{"num_experts": 4}')
    path = safetensors(tmp_path / "rank0.safetensors", **{"0_1": np.array([1, 2])})
    assert "0_1: found int64 of shape (2,), expected counts of 4 experts" in refused(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "its header is not understood"),
        (b'{"0_1": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}', "number format 'BF16', allowed: I64"),
        (
            b'{"0_1": {"dtype": "I64", "shape": [9], "data_offsets": [0, 8]}}',
            "0_1: lies at bytes 0 to 8 of 8, with shape",
        ),
        (b'{"0_1": {"dtype": "I64", "shape": [1], "data_offsets": [8, 16]}}', "0_1: lies at bytes 8 to 16 of 8"),
        (b'{"0_1": {"dtype": "I64", "shape": [-1], "data_offsets": [0, 8]}}', "shapes and offsets are whole numbers"),
    ],
)
def test_a_wrong_safetensors_header(tmp_path, header, message):
    path = tmp_path / "rank0.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert message in refused(path)


def test_a_safetensors_header_longer_than_the_file(tmp_path):
    path = tmp_path / "rank0.safetensors"
    path.write_bytes(b"\xff" * 9)
    assert "is not a safetensors file: its header would have" in refused(path)


def test_router_logits_with_top_k_inside_or_after_the_name(tmp_path):
    logits = np.array([[0.1, 3.0, 2.0, -1.0], [5.0, 4.0, 1.0, 0.0]], dtype=np.float32)
    np.savez(tmp_path / "inside.npz", layer_3=logits, top_k=np.array(2))
    np.savez(tmp_path / "after.npz", logits)
    inside, after = read_trace(tmp_path / "inside.npz"), read_trace(f"{tmp_path / 'after.npz'}#1")
    assert (counts(inside), inside.layers) == ([[1, 2, 1, 0]], (3,))
    assert (counts(after), after.layers) == ([[1, 1, 0, 0]], (0,))
    assert (
        refused(tmp_path / "after.npz")
        == "top_k: found '', expected the experts of a token as an array top_k, or as FILE#8"
    )


def test_wrong_router_logits(tmp_path):
    np.savez(tmp_path / "a.npz", layer=np.ones((2, 4)))
    np.savez(tmp_path / "b.npz", layer_1=np.ones((2, 4), dtype=np.int64))
    assert refused(f"{tmp_path / 'a.npz'}#1").startswith("found an array 'layer', expected names that end in a layer")
    assert refused(f"{tmp_path / 'b.npz'}#1").startswith(
        "layer_1: found int64 of shape (2, 4), expected floating-point"
    )


def test_files_that_break_off(tmp_path):
    np.save(tmp_path / "r.npy", np.zeros((100, 2, 2), dtype=np.int16))
    (tmp_path / "r.npy").write_bytes((tmp_path / "r.npy").read_bytes()[:-10])
    assert refused(tmp_path / "r.npy") == "cannot be read: it breaks off"
    (tmp_path / "r.npz").write_bytes(b"PK\x03\x04rest")
    assert "is not an .npz archive" in refused(tmp_path / "r.npz")


def test_a_format_that_is_not_known(tmp_path):
    (tmp_path / "x.jsonl").write_text("{}\n")
    assert refused(tmp_path / "x.jsonl").startswith("is of no format that is known: .csv, .json, .jsonl")


def test_memory_does_not_grow_with_the_file(tmp_path):
    shape = (150_000, 50, 8)
    np.lib.format.open_memmap(tmp_path / "large.npy", mode="w+", dtype=np.int16, shape=shape)[:, :, 0] = 1
    tracemalloc.start()
    try:
        trace = read_trace(tmp_path / "large.npy")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert trace.counts[0, 0, 0].tolist() == [150_000 * 7, 150_000]
    assert peak_bytes < 0.75 * 2 * 150_000 * 50 * 8


def test_progress_goes_from_nothing_to_all(tmp_path):
    lines(tmp_path / "t.jsonl", *(megatron(step, 1, 0, [0, 1]) for step in range(4)))
    heard: list[float] = []
    read_trace(tmp_path / "t.jsonl", heard.append)
    assert (sorted(heard), heard[-1]) == (heard, 1.0)
    assert len(heard) == 4
