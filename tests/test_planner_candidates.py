"""Candidates are what a scenario would not be refused for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_jobs import Small, write_small

from simulator.forecast.assembly import assemble_job
from simulator.forecast.fitting import changed
from simulator.planner.candidates import candidates, for_any_sharding, job_of_any_split, settings_of
from simulator.planner.splits import RECOMPUTE, Splits

STORED = "training.float8={recipe: blockwise, stored: [moe_act, core_attn]}"


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return write_small(tmp_path)


def _candidates(small: Small, kind: str, *overrides: str) -> Splits:
    scenario, folder = small(kind, "training.global_batch_sequences=32", *overrides)
    scenario = for_any_sharding(scenario)
    return candidates(scenario, job_of_any_split(scenario, folder))


def test_what_is_stored_in_fewer_bits_is_neither_recomputed_nor_cut_into_pieces(small: Small) -> None:
    splits = _candidates(small, "latent", "training.execution=fused", STORED)
    assert set(splits["recompute"].tolist()) == {RECOMPUTE.index("none")}
    assert set(splits["cp"].tolist()) == {1}


def test_what_experts_store_is_known_of_pieces_of_sequences(small: Small) -> None:
    splits = _candidates(small, "latent", "training.execution=fused", STORED.replace(", core_attn", ""))
    assert set(splits["recompute"].tolist()) == {RECOMPUTE.index("none")}
    assert set(splits["cp"].tolist()) == {1, 2}


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("dense", ()),
        ("mixture", ()),
        ("latent", ("training.execution=fused", STORED)),
        ("latent", ("training.execution=fused", STORED.replace(", core_attn", ""))),
        ("mixture", ("training.recompute={modules: [moe_act]}",)),
        ("predicting", ("training.multi_token_prediction=1", "training.recompute={every: 2}")),
        ("seeing-mixture", ("training.images={height: 256, width: 256, per_sequence: [6]}",)),
    ],
)
def test_no_candidate_is_refused(small: Small, kind: str, overrides: tuple[str, ...]) -> None:
    splits = _candidates(small, kind, *overrides)
    scenario, folder = small(kind, "training.global_batch_sequences=32", *overrides)
    for number in np.random.default_rng(6).permutation(len(splits))[:20].tolist():
        assemble_job(changed(scenario, settings_of(splits.split(number), scenario.training)), folder)
