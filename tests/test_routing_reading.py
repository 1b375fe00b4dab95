import json
from pathlib import Path

import pytest

from simulator.routing import RoutingError, read_table
from simulator.shipped import shipped


def written(folder: Path, content: object, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def problems(path: Path | str) -> list[str]:
    with pytest.raises(RoutingError) as caught:
        read_table(path)
    return [f"{problem.where}: {problem.message}".removeprefix(": ") for problem in caught.value.problems]


def test_logical_count_with_a_dense_first_layer(tmp_path):
    table = read_table(written(tmp_path, {"logical_count": [[0, 0, 0], [1, 2, 3], [4.5, 0, 1]], "rank": 0}))
    assert table.counts.tolist() == [[1, 2, 3], [4.5, 0, 1]]
    assert table.recorded_layers == (1, 2)
    assert (table.name, table.source) == ("trace", "")


def test_steps_are_summed(tmp_path):
    table = read_table(written(tmp_path, {"logical_count": [[[0, 0], [1, 2]], [[0, 0], [3, 5]], [[0, 0], [1, 1]]]}))
    assert table.counts.tolist() == [[5, 8]]
    assert table.recorded_layers == (1,)


def test_a_domain_is_chosen_after_a_hash(tmp_path):
    document = {"source": "somewhere", "layers_recorded": [0, 7], "counts_by_domain": {"c4": [[1, 2], [3, 4]], "x": 0}}
    table = read_table(f"{written(tmp_path, document)}#c4")
    assert table.counts.tolist() == [[1, 2], [3, 4]]
    assert (table.name, table.source, table.recorded_layers) == ("trace#c4", "somewhere, c4", (0, 7))


def test_unknown_layer_numbers_stay_unknown(tmp_path):
    document = {"layers_recorded": None, "counts_by_domain": {"c4": [[1, 2]]}}
    assert read_table(f"{written(tmp_path, document)}#c4").recorded_layers == ()


def test_a_hash_in_a_file_name_is_part_of_it(tmp_path):
    assert read_table(written(tmp_path, {"logical_count": [[1, 2]]}, "a#b.json")).name == "a#b"


def test_csv_in_any_column_order(tmp_path):
    text = "expert_id, layer_id, count\n1,2,30\n0,2,10.5\n\n2,0,7\n"
    table = read_table(written(tmp_path, text, "trace.csv"))
    assert table.counts.tolist() == [[0, 0, 7], [10.5, 30, 0]]
    assert table.recorded_layers == (0, 2)


@pytest.mark.parametrize("domain", ["arxiv", "book", "c4", "github", "tulu", "wikipedia"])
def test_shipped_traces_say_where_they_come_from(domain):
    table = read_table(shipped("scenarios", "traces", f"olmoe-{domain}.json"))
    assert (table.layers, table.experts, table.recorded_layers) == (3, 64, (0, 7, 15))
    assert "Apache-2.0" in table.source
    # Each of the top 8 choices of every recorded token is counted.
    assert (table.counts.sum(axis=1) % 8 == 0).all()


def test_shipped_github_is_skewed_and_c4_is_milder():
    github, c4 = (read_table(shipped("scenarios", "traces", f"olmoe-{name}.json")) for name in ("github", "c4"))
    assert github.expert_max_over_mean() == pytest.approx([5.006, 6.157, 4.509], abs=0.0005)
    assert c4.expert_max_over_mean() == pytest.approx([3.017, 2.658, 2.499], abs=0.0005)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([], "found an empty list, expected an object with logical_count or counts_by_domain"),
        ({"counts": [[1]]}, "found keys counts, expected logical_count or counts_by_domain"),
        ({}, "found keys none, expected logical_count or counts_by_domain"),
        ({"logical_count": []}, "logical_count: found an empty list, expected a list of layers"),
        ({"logical_count": {"0": [1]}}, "logical_count: found an object with 1 keys, expected a list of layers"),
        ({"logical_count": None}, "logical_count: found null, expected a list of layers"),
        ({"logical_count": [1]}, "logical_count[0]: found 1, expected a list of counts, one per expert"),
        ({"logical_count": [[]]}, "logical_count[0]: found an empty list, expected a list of counts, one per expert"),
        ({"logical_count": [[1, 2], [1]]}, "logical_count[1]: found 1 counts, expected 2 as in the first layer"),
        (
            {"logical_count": [[[1, 2]], [[1, 2, 3]]]},
            "logical_count[1][0]: found 3 counts, expected 2 as in the first layer",
        ),
        (
            {"logical_count": [[[1], [2]], [[1]]]},
            "logical_count[1]: found a list of 1, expected a list of 2 layers as in step 0",
        ),
        (
            {"logical_count": [[[[1]]]]},
            "logical_count[0][0]: expert 0: found a list of 1, expected a count from 0 to 1e+15",
        ),
        (
            {"logical_count": [[1, -3, True, "7"]]},
            "logical_count[0]: expert 1: found -3, expected a count from 0 to 1e+15"
            " (and 2 more counts of this layer are wrong)",
        ),
        ({"logical_count": [[True, 1]]}, "logical_count[0]: expert 0: found true, expected a count from 0 to 1e+15"),
        ({"logical_count": [[0, 0], [0, 0]]}, "has no layer with any assignment: all counts are zero"),
        ({"counts_by_domain": 3}, "counts_by_domain: found 3, expected domains"),
        (
            {"logical_count": [[1]], "layers_recorded": [0, 1]},
            "layers_recorded: found a list of 2, expected 1 layer numbers, one per row of counts",
        ),
        (
            {"logical_count": [[1]], "layers_recorded": [-1]},
            "layers_recorded: found a list of 1, expected 1 layer numbers, one per row of counts",
        ),
    ],
)
def test_a_wrong_document_says_what_was_expected(tmp_path, document, expected):
    assert problems(written(tmp_path, document)) == [expected]


@pytest.mark.parametrize(
    ("count", "found"),
    [("NaN", "nan"), ("Infinity", "inf"), ("1" + "0" * 400, "inf"), ("9" * 6000, "inf"), ("1e16", "1e+16")],
)
def test_numbers_that_are_no_count(tmp_path, count, found):
    path = written(tmp_path, f'{{"logical_count": [[1, {count}]]}}')
    assert problems(path) == [f"logical_count[0]: expert 1: found {found}, expected a count from 0 to 1e+15"]


def test_all_layers_that_are_wrong_are_listed(tmp_path):
    rows = [[1, 2], [1], [-1, 2], "x", [1, 2]]
    assert [text.split(":")[0] for text in problems(written(tmp_path, {"logical_count": rows}))] == [
        "logical_count[1]",
        "logical_count[2]",
        "logical_count[3]",
    ]


def test_a_wrong_domain_lists_the_domains(tmp_path):
    path = written(tmp_path, {"counts_by_domain": {"c4": [[1]], "github": [[1]]}})
    several = "counts_by_domain: several domains, choose one as FILE#DOMAIN; allowed: c4, github"
    assert problems(path) == [several]
    near = "counts_by_domain: no domain 'gihub'; did you mean 'github'? allowed: c4, github"
    assert problems(f"{path}#gihub") == [near]
    plain = written(tmp_path, {"logical_count": [[1]]}, "plain.json")
    assert problems(f"{plain}#c4") == ["has no domains, but 'c4' was asked for"]


def test_broken_json_gives_the_line(tmp_path):
    with pytest.raises(RoutingError, match=r"trace\.json:2: is not JSON"):
        read_table(written(tmp_path, '{"logical_count":\n [[1, 2,]]}'))
    assert problems(written(tmp_path, "")) == ["is not JSON: Expecting value"]
    assert problems(written(tmp_path, "[" * 200_000)) == ["is nested too deeply, expected at most three lists"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["found the header (none), expected layer,expert,count"]),
        ("0,0,1\n", ["found the header 0,0,1, expected layer,expert,count"]),
        ("layer,expert,count\n", ["found no counts under the header"]),
        ("layer,expert,count\n0,0\n", ["found 2 fields, expected 3"]),
        (
            "layer,expert,count\n-1,0,1\n0,99999,1\n0,0,nan\n0,1,1e400\n0,2,x\n0,3,1\n0,3,2\n",
            [
                "found layer '-1', expected a whole number from 0 to 999",
                "found expert '99999', expected a whole number from 0 to 9999",
                "found count 'nan', expected a number from 0 to 1e+15",
                "found count '1e400', expected a number from 0 to 1e+15",
                "found count 'x', expected a number from 0 to 1e+15",
                "layer 0, expert 3 was given in line 7 already",
            ],
        ),
        ('layer,expert,count\n0,0,"1', ["is not CSV: unexpected end of data"]),
        ("layer,expert,count\n0,0,0\n", ["has no layer with any assignment: all counts are zero"]),
    ],
)
def test_a_wrong_csv_lists_every_line(tmp_path, text, expected):
    assert problems(written(tmp_path, text, "trace.csv")) == expected


def test_files_that_are_not_text(tmp_path):
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{\n"source": "\xe9"}')
    assert problems(latin) == ["is not text: byte 0xe9 is not UTF-8"]
    (message,) = problems(tmp_path)
    assert message.startswith(
        "is a folder without files of a recorder: *rank*.jsonl, expert_distribution_recorder_*.pt"
    )
    assert problems(tmp_path / "absent.json") == ["no such file"]


def test_reading_stops_at_a_thousand_problems(tmp_path):
    assert len(problems(written(tmp_path, {"logical_count": [-1] * 5000}))) == 1000
    assert len(problems(written(tmp_path, {"logical_count": [[[1]], *[[[-1]]] * 5000]}))) == 1000
    assert len(problems(written(tmp_path, "layer,expert,count\n" + "x,0,1\n" * 5000, "trace.csv"))) == 1000


def test_a_file_too_large_is_refused_unread(tmp_path):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(64_000_001)
    assert problems(path) == ["is larger than 64 MB; sum its steps first"]
