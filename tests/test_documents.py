import os
import resource
import time
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, model_validator

from simulator.documents import InvalidDocument, load, read
from simulator.units import Bytes


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    size: Bytes = 0
    degree: Annotated[int, Field(ge=1, le=1000)] = 1
    kind: Literal["ring", "tree"] = "ring"


class Disk(BaseModel):
    model_config = ConfigDict(extra="forbid")

    capacity: Bytes


class Sheet(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    share: float = 0.5
    on: bool = True
    part: Part = Part()
    parts: tuple[Part, ...] = ()
    by_name: dict[str, Part] = {}
    by_number: dict[Annotated[int, Field(ge=0)], float] = {}
    either: float | Disk | None = None

    @model_validator(mode="after")
    def _checked(self) -> "Sheet":
        if self.name == "twice wrong":
            raise ValueError("first reason\nsecond reason")
        return self


def problems(tmp_path: Path, text: str | bytes, *overrides: str) -> list[str]:
    """What load says, a line a problem, with the file called F."""
    path = tmp_path / "sheet.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidDocument) as caught:
        load(path, Sheet, overrides)
    return str(caught.value).replace(str(path), "F").splitlines()


def sheet(tmp_path: Path, text: str, *overrides: str) -> Sheet:
    path = tmp_path / "sheet.yaml"
    path.write_text(text)
    return load(path, Sheet, overrides)


def test_reads_yaml_1_2(tmp_path: Path) -> None:
    found = sheet(
        tmp_path,
        "\ufeffname: no\nshare: 80e9\nparts:\n- {size: 141 GiB, degree: 0x10}\n- &p {degree: 0o17}\n- *p\n",
    )
    assert found.name == "no"
    assert found.share == 80e9
    assert found.parts == (Part(size=141 * 2**30, degree=16), Part(degree=15), Part(degree=15))


def test_a_text_is_parsed_once_and_a_changed_one_again(tmp_path: Path) -> None:
    path = tmp_path / "sheet.yaml"
    path.write_text("name: before")
    first = load(path, Sheet)
    assert load(path, Sheet) is first
    path.write_text("name: behind")
    assert (first.name, load(path, Sheet).name) == ("before", "behind")


def test_quotes_make_a_number_a_text(tmp_path: Path) -> None:
    assert sheet(tmp_path, "name: '12'\n").name == "12"
    assert problems(tmp_path, "name: 12\n") == ["F:1: name: found 12, expected a text"]


def test_lists_every_problem_with_its_line(tmp_path: Path) -> None:
    text = """\
nam: x
share: half
on: 1
part:
  degree: 1001
  kind: rong
  size: 3 parsecs
parts: {}
by_name:
  a: {degre: 3}
"""
    assert problems(tmp_path, text) == [
        "F:1: name: missing key, expected a text",
        "F:1: nam: unknown key; did you mean 'name'? allowed: by_name, by_number, either, name, on, part, parts, share",
        "F:2: share: found 'half', expected a number",
        "F:3: on: found 1, expected true or false",
        "F:5: part.degree: found 1001, expected an integer from 1 to 1,000",
        "F:6: part.kind: found 'rong', expected one of ring, tree",
        "F:7: part.size: found '3 parsecs', expected a quantity such as '141 GiB'",
        "F:8: parts: found an empty mapping, expected a list",
        "F:10: by_name.a.degre: unknown key; did you mean 'degree'? allowed: degree, kind, size",
    ]


@pytest.mark.parametrize("value", ["true", "1.0", "'1'", "[1]", "{a: 1}"])
def test_an_integer_is_nothing_else(tmp_path: Path, value: str) -> None:
    shown = {"[1]": "a list of 1", "{a: 1}": "a mapping"}.get(value, value)
    expected = f"F:2: part.degree: found {shown}, expected an integer from 1 to 1,000"
    assert problems(tmp_path, f"name: a\npart: {{degree: {value}}}") == [expected]


def test_a_missing_key_has_the_line_of_the_mapping_around_it(tmp_path: Path) -> None:
    expected = "F:3: either.capacity: missing key, expected a number or a text, such as '141 GiB'"
    assert problems(tmp_path, "name: a\n\neither: {}\n") == [expected]


def test_a_wrong_key_is_named_and_not_its_value(tmp_path: Path) -> None:
    assert problems(tmp_path, "name: a\nby_number: {x: 1, -2: 1}\n") == [
        "F:2: by_number.x: found the key 'x', expected a valid integer, unable to parse string as an integer",
        "F:2: by_number.-2: found the key '-2', expected greater than or equal to 0",
    ]


def test_a_union_gives_one_problem(tmp_path: Path) -> None:
    expected = "F:2: either: found 'x', expected a number or a mapping with capacity or null"
    assert problems(tmp_path, "name: a\neither: x\n") == [expected]


def test_a_union_speaks_of_the_member_that_got_furthest(tmp_path: Path) -> None:
    expected = "F:2: either.capacity: found -1, a quantity of bytes cannot be negative"
    assert problems(tmp_path, "name: a\neither: {capacity: -1}\n") == [expected]


def test_a_model_may_tell_several_problems(tmp_path: Path) -> None:
    assert problems(tmp_path, "name: twice wrong\n") == ["F:1: first reason", "F:1: second reason"]


def test_a_duplicate_key_names_both_lines(tmp_path: Path) -> None:
    assert problems(tmp_path, "name: a\nshare: 1\nname: b\n") == ["F:3: name: duplicate key, first at line 1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "F: the file is empty; expected a mapping"),
        ("# only a comment\n", "F: the file is empty; expected a mapping"),
        ("- 1\n- 2\n", "F:1: found a list of 2, expected a mapping"),
        ("hello\n", "F:1: found 'hello', expected a mapping"),
        ("a: 1\n---\nb: 2\n", "F:2: found a second document; allowed: one document a file"),
        (
            "name: [1, 2\nshare: 3\n",
            "F:2: not YAML at column 6: expected ',' or ']', but got ':' while parsing a flow sequence",
        ),
        (
            "name:\n\t- b\n",
            "F:2: not YAML at column 1: found character '\\t' that cannot start any token "
            "while scanning for the next token",
        ),
        ("name: 'a\n", "F:2: not YAML at column 1: found unexpected end of stream while scanning a quoted scalar"),
        ("a: &a [*a]\n", "F:1: a.0: found the alias *a, whose anchor is not complete before it"),
        ("? [a, b]\n: 1\n", "F:1: found a key that is no word"),
        ("name: \x1b[31m\n", "F:1: found the control character U+001B, which is not allowed"),
        ('name: "\\UFFFFFFFF"\n', "F:1: not YAML: Python int too large to convert to C int"),
        (b"name: caf\xe9\n", "F:1: is not UTF-8: byte 0xe9"),
        (b"\x7fELF\0\0\0", "F: is a binary file, expected YAML text"),
        (b"#" * 4_000_001, "F: larger than 4 MB"),
    ],
)
def test_what_is_no_yaml_mapping_is_refused(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert problems(tmp_path, text) == [expected]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (".inf", "found .inf, expected a finite number"),
        ("-.INF", "found -.INF, expected a finite number"),
        (".nan", "found .nan, expected a finite number"),
        ("1e999", "found 1e999, a number too large for a double; allowed: up to 1.8e308"),
        ("1" + "0" * 400, "found an integer of 401 digits; allowed: integers of up to 64 bits"),
        ("9" * 100_000, "found an integer of 100000 digits; allowed: integers of up to 64 bits"),
        (str(2**63), "found 9223372036854775808; allowed: integers of up to 64 bits, or a float such as 1e21"),
        ("!!python/object/apply:os.system [id]", "found the tag !!python/object/apply:os.system; tags are not read"),
        ("!mine 3", "found the tag !mine; tags are not read"),
        ('"a\\e[2Jb"', "found a text with the control character U+001B, which is not allowed"),
        ('"\\0"', "found a text with the control character U+0000, which is not allowed"),
        ('"\\ud800"', "found a text with the control character U+D800, which is not allowed"),
    ],
)
def test_a_value_refused_while_reading_is_told_once(tmp_path: Path, value: str, expected: str) -> None:
    assert problems(tmp_path, f"name: a\nshare: {value}\n") == [f"F:2: share: {expected}"]


def test_merge_keys_are_refused(tmp_path: Path) -> None:
    text = "name: a\nby_name:\n  a: &a {degree: 2}\n  b:\n    <<: *a\n"
    assert problems(tmp_path, text) == ["F:5: by_name.b.<<: merge keys are not read; write the keys out"]


def test_the_largest_64_bit_integer_reads(tmp_path: Path) -> None:
    assert sheet(tmp_path, f"name: a\nshare: {2**63 - 1}\n").share == 2.0**63


def test_unprintable_characters_of_the_file_are_escaped(tmp_path: Path) -> None:
    text = 'name: a\n"\u202eb": 1\n'
    assert problems(tmp_path, text)[0].startswith("F:2: \\u202eb: unknown key; allowed:")


def test_a_refused_key_is_an_unknown_key_too(tmp_path: Path) -> None:
    assert problems(tmp_path, 'name: a\n"\\ud800": 1\n') == [
        "F:2: found a text with the control character U+D800, which is not allowed",
        "F:2: \\ud800: unknown key; allowed: by_name, by_number, either, name, on, part, parts, share",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)),
        "a: &a '" + "x" * 1_000_000 + "'\nb: [" + ",".join(["*a"] * 1000) + "]\n",
    ],
    ids=["values", "text"],
)
def test_an_alias_bomb_is_refused_in_little_time_and_memory(tmp_path: Path, text: str) -> None:
    before_kb, before_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    found = problems(tmp_path, text)
    assert [line.split(": ", 1)[1] for line in found] == ["expands to more than 100,000 values; is it an alias bomb?"]
    assert time.process_time() - before_s < 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 100_000


@pytest.mark.parametrize("text", ["a: " + "[" * 100_000, "- " * 3000, "".join(" " * i + "a:\n" for i in range(200))])
def test_deep_nesting_is_refused(tmp_path: Path, text: str) -> None:
    before_s = time.process_time()
    assert problems(tmp_path, text)[0].endswith("nested deeper than 64 levels")
    assert time.process_time() - before_s < 5


def test_many_problems_are_counted_not_printed(tmp_path: Path) -> None:
    found = problems(tmp_path, "name: a\n" + "".join(f"k{i}: 1\n" for i in range(1000)))
    assert len(found) == 101
    assert found[-1] == "... and 101 more problems"


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument) as caught:
        load(tmp_path / "no.yaml", Sheet)
    assert str(caught.value) == f"{tmp_path / 'no.yaml'}: no such file"


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument) as caught:
        load(tmp_path, Sheet)
    assert str(caught.value) == f"{tmp_path}: is a folder, expected a file"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidDocument) as caught:
        load(tmp_path / "pipe", Sheet)
    assert str(caught.value) == f"{tmp_path / 'pipe'}: is not a regular file"


def test_overrides_change_add_and_reach_into_lists(tmp_path: Path) -> None:
    found = sheet(
        tmp_path,
        "name: a\nparts: [{degree: 2}, {degree: 3}]\n",
        "part.kind=tree",
        "parts.1.degree=7",
        "either={capacity: 2 GB}",
        "by_name.x.size=1 GiB",
        "share = 1e-3",
    )
    assert found.part.kind == "tree"
    assert [part.degree for part in found.parts] == [2, 7]
    assert found.either == Disk(capacity=2e9)
    assert found.by_name == {"x": Part(size=2**30)}
    assert found.share == 0.001


def test_an_override_leaves_other_uses_of_an_anchor_alone(tmp_path: Path) -> None:
    found = sheet(tmp_path, "name: a\npart: &p {degree: 2}\nparts: [*p]\n", "part.degree=5")
    assert (found.part.degree, found.parts[0].degree) == (5, 2)


def test_an_empty_override_is_null(tmp_path: Path) -> None:
    assert sheet(tmp_path, "name: a\neither: 3\n", "either=").either is None


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("part.degre=2", "part.degre: unknown key; did you mean 'degree'? allowed: degree, kind, size"),
        ("part.degree=1001", "part.degree: found 1001, expected an integer from 1 to 1,000"),
        ("part.degree=.nan", "part.degree: found .nan, expected a finite number"),
        ("name.first=2", "name.first: unknown path: name is the value 'a', which has no keys"),
        ("parts.4=2", "parts.4: unknown path: parts is a list; allowed: 0"),
        ("part", "expected path.to.key=value, such as parallel.ep=64"),
        ("a\udcffb=3", "found a text with the control character U+DCFF, which is not allowed"),
        ("=3", "expected path.to.key=value, such as parallel.ep=64"),
        (".".join("a" * 65) + "=3", "expected path.to.key=value, such as parallel.ep=64"),
        ("by_name={a: {}, a: {}}", "by_name: duplicate key"),
        ("part..degree=3", "expected path.to.key=value, such as parallel.ep=64"),
        (
            "name=[",
            "not YAML at column 2: expected the node content, but found '<stream end>' while parsing a flow node",
        ),
    ],
)
def test_a_bad_override_is_named(tmp_path: Path, override: str, expected: str) -> None:
    found = problems(tmp_path, "name: a\nparts: [{}]\n", override)
    shown = override.replace("\udcff", "\\udcff") if len(override) <= 80 else override[:80] + "..."
    assert found == [f"--set {shown}: {expected}"]


def test_problems_of_file_and_overrides_come_together(tmp_path: Path) -> None:
    assert problems(tmp_path, "name: 1\nname: 2\n", "share=x", "on") == [
        "F:1: name: found 1, expected a text",
        "F:2: name: duplicate key, first at line 1",
        "--set on: expected path.to.key=value, such as parallel.ep=64",
        "--set share=x: share: found 'x', expected a number",
    ]


def test_a_document_knows_where_its_values_are(tmp_path: Path) -> None:
    path = tmp_path / "sheet.yaml"
    path.write_text("name: a\npart:\n  degree: 3\n")
    document = read(path, Sheet, ["share=1"])
    assert str(document.problem("part.degree", "odd")) == f"{path}:3: part.degree: odd"
    assert str(document.problem("part.size", "small")) == f"{path}:2: part.size: small"
    assert str(document.problem("share", "big")) == "--set share=1: share: big"


@given(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=60) | st.text(alphabet="a:-[]{}&*!|>'\"%@#,? \n\t\\<~.0e")
)
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(text.encode())
    said = ""
    try:
        load(path, Sheet)
    except InvalidDocument as error:
        said = str(error)
    assert all(line.isprintable() for line in said.splitlines())
