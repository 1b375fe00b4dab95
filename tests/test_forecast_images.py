from collections.abc import Iterable

import pytest
from small_jobs import Small

from simulator.documents import InvalidDocument
from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused


def asked(*parts: str) -> str:
    return f"training.images={{{', '.join(('height: 256', 'width: 256', *parts))}}}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((asked(),), "found neither; allowed: one of per_sequence and synthetic"),
        (
            (asked("per_sequence: [1]", "synthetic: {mean: 1, sigma: 0}"),),
            "found per_sequence and synthetic; allowed: one of per_sequence and synthetic",
        ),
        ((asked("per_sequence: [0, 0]"),), "found no image at all; leave training.images out"),
        (
            (asked("per_sequence: [1]", "frozen: [tower]"), "training.lora={rank: 8}"),
            "with training.lora all base weights are frozen, the tower's and the projector's too; leave it out",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(small: Small, settings: Iterable[str], message: str) -> None:
    with pytest.raises(InvalidDocument) as error:
        small("seeing", *settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("kind", "setting", "message"),
    [
        ("dense", asked("per_sequence: [1]"), "training.images: llama has no vision tower; leave it out"),
        (
            "seeing",
            "training.images={height: 250, width: 256, per_sequence: [1]}",
            "training.images.height: found 250, which is no multiple of patch(16) * merge(2) = 32; nearest: 224 or 256",
        ),
        (
            "seeing",
            asked("per_sequence: [1, 33]"),
            "training.sequence_length: found 2048, but 33 images of 64 tokens take 2112; there is room for 32",
        ),
    ],
)
def test_what_the_model_cannot_see_is_refused(small: Small, kind: str, setting: str, message: str) -> None:
    with pytest.raises(Refused) as error:
        assemble_job(*small(kind, setting))
    assert error.value.messages == (message,)
