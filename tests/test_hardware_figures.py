import pytest
from pydantic import ValidationError

from simulator.hardware.figure import Figure
from simulator.units import BytesPerSecond, Seconds


def test_a_figure_reads_its_unit_at_the_border():
    figure = Figure[BytesPerSecond](value="400 Gbit/s", source="a sheet", grade="datasheet")
    assert figure.value == 50e9


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"value": "0 us"}, "leave it out"),
        ({"value": "3 GB"}, "expected a quantity such as '3 us'"),
        ({"source": ""}, "at least 1 character"),
        ({"grade": "guessed"}, "'datasheet', 'measured', 'scaled' or 'assumed'"),
        ({"note": "?"}, "Extra inputs are not permitted"),
    ],
)
def test_a_figure_without_value_source_or_grade_is_refused(change, word):
    with pytest.raises(ValidationError) as refused:
        Figure[Seconds].model_validate({"value": "3 us", "source": "a sheet", "grade": "measured"} | change)
    assert word in str(refused.value)


def test_a_figure_does_not_change():
    figure = Figure[Seconds](value="3 us", source="a sheet", grade="measured")
    with pytest.raises(ValidationError, match="frozen"):
        figure.value = 4.0
