"""TensorRT-LLM's expert statistic: ``meta_info.json`` and ``rank*.safetensors`` in the folder EXPERT_STATISTIC_PATH.

Arrays are named ``ITERATION_LAYER`` and hold the count of each expert; those in ``rank*_raw.safetensors`` hold each
token's experts, [tokens, top_k], and are read instead of the counts where a rank has both. Without attention data
parallelism all ranks see the same tokens, and each counts them; ratios are right, sums too large.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from simulator.documents.problem import escape
from simulator.routing.recording import (
    MAX_EXPERTS,
    MAX_LAYERS,
    Batch,
    Hear,
    Recording,
    check_counts,
    check_picks,
    joint_name,
    refuse,
)
from simulator.routing.safetensors import tensors

FOLDER = "rank*.safetensors"
MAX_COUNT = 2**53
_META = "meta_info.json"


def recognises(file: Path, head: bytes) -> bool:  # noqa: ARG001, the name tells
    """By the suffix."""
    return file.suffix.lower() == ".safetensors"


def record(files: list[Path], choice: str) -> Recording:  # noqa: ARG001, there is nothing to choose
    """The recording that *files* hold together, with the ``meta_info.json`` beside them if there is one."""
    raw = {_rank(file) for file in files if file.stem.endswith("_raw")}
    chosen = [file for file in files if file.stem.endswith("_raw") or _rank(file) not in raw]
    experts = _experts(files[0].parent / _META)
    return Recording(joint_name(files), lambda hear: _batches(chosen, experts, hear), experts=experts)


def _batches(files: list[Path], experts: int, hear: Hear) -> Iterator[Batch]:
    for number, file in enumerate(files):
        for name, array in tensors(file):
            step, layer = _place(name, file)
            yield _batch(array, step, layer, _rank(file), experts, file, name)
        hear((number + 1) / len(files))


def _batch(array: np.ndarray, step: int, layer: int, rank: int, experts: int, file: Path, name: str) -> Batch:
    if array.ndim == 2 and array.dtype.kind in "iu":
        return Batch(layer, step, rank, picks=check_picks(array.astype(np.int64), file, name))
    if array.ndim != 1 or (experts and array.size != experts):
        wanted = f"counts of {experts or 'its'} experts or the experts of tokens"
        raise refuse(file, f"found {array.dtype} of shape {array.shape}, expected {wanted}", where=escape(name))
    return Batch(layer, step, rank, counts=check_counts(array, file, name, MAX_COUNT))


def _place(name: str, file: Path) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,18})_([0-9]{1,9})", name)
    if not found or int(found[2]) >= MAX_LAYERS:
        raise refuse(file, f"found an array {escape(name)!r}, expected ITERATION_LAYER, layers up to {MAX_LAYERS - 1}")
    return int(found[1]), int(found[2])


def _rank(file: Path) -> int:
    found = re.search(r"[0-9]{1,9}", file.stem)
    return int(found[0]) if found else 0


def _experts(meta: Path) -> int:
    """The number of experts, 0 when nothing says it."""
    if not meta.is_file():
        return 0
    try:
        with meta.open("rb") as stream:
            experts = json.loads(stream.read(1_000_000))["num_experts"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise refuse(meta, "is not a JSON object with num_experts") from None
    if type(experts) is not int or not 1 <= experts <= MAX_EXPERTS:
        raise refuse(meta, f"found {str(experts)[:60]}, expected 1 to {MAX_EXPERTS}", where="num_experts")
    return experts
