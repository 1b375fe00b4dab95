"""Documents packed into the sequences of a dense model of four layers on 16 ranks."""

import pytest
from small_jobs import Small

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.program.flops import model_flops


def lengths(small: Small, *overrides: str) -> tuple[int, ...]:
    return assemble_job(*small("dense", *overrides)).workload.sequence_lengths


def test_a_sequence_is_cut_into_documents_and_a_rest(small: Small) -> None:
    assert lengths(small, "training.document_length=600") == (600, 600, 600, 248)
    assert lengths(small, "training.document_length=2048") == lengths(small) == (2048,)
    assert lengths(small, "training.document_length=1024", "training.micro_batch_sequences=1") == (1024, 1024)


def test_only_attention_costs_less_for_documents(small: Small) -> None:
    whole, packed = (assemble_job(*small("dense", *how)) for how in ((), ("training.document_length=512",)))
    pairs = 2048 * 2049 / 2 - 4 * 512 * 513 / 2
    # Two products of 2 x 1,024 FLOPs a pair in each of 4 layers, forward and twice that backward.
    assert model_flops(whole) - model_flops(packed) == pytest.approx(3 * 4 * 2 * 2 * 1024 * pairs)


def test_packed_sequences_are_faster_and_need_no_more_memory(small: Small) -> None:
    # So many tokens that no step is as long as the host is busy.
    batch = ("training.micro_batch_sequences=8", "training.global_batch_sequences=128")
    long = ("training.sequence_length=8192", *batch)
    whole = forecast(*small("dense", *long)).summary
    packed = forecast(*small("dense", *long, "training.document_length=512")).summary
    assert packed["step_time_s"]["p50"] < whole["step_time_s"]["p50"]
    assert packed["memory"]["hbm"]["peak_bytes"] == pytest.approx(whole["memory"]["hbm"]["peak_bytes"])


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("training.document_length=4096",), "longer than the sequence of 2048"),
        (("training.document_length=512", "parallel={cp: 2, dp_shard: 8}"), "allowed: cp 1"),
        (("training.document_length=512", "training.attention=unfused"), "allowed: flash"),
    ],
)
def test_what_documents_do_not_go_together_with_is_refused(small: Small, overrides: tuple[str, ...], told: str) -> None:
    with pytest.raises(Refused, match=told):
        assemble_job(*small("dense", *overrides))
