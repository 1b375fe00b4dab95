"""SGLang's expert distribution recorder: ``expert_distribution_recorder_*.pt``, one file, or one a rank.

Mode ``stat`` and ``stat_approx``: ``logical_count`` [steps, layers, experts]. Mode ``per_pass``: ``records``, each with
``global_physical_count`` [layers, slots]. Mode ``per_token``: records with ``topk_ids_of_layer`` [layers, tokens,
top_k], -1 where there is none. The last two count slots; ``last_physical_to_logical_map`` [layers, slots] names the
expert of each. It is the map at the end: where experts were moved while recording, earlier records are read by the
wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from simulator.routing.recording import Batch, Hear, Recording, check_counts, check_picks, joint_name, refuse
from simulator.routing.table import IntArray
from simulator.routing.torch_file import Tensor, TorchFile

FOLDER = "expert_distribution_recorder_*.pt"
MAX_COUNT = 2**53


def recognises(file: Path, head: bytes) -> bool:
    """By its suffix, or as a pickle or a zip archive that is not numpy's."""
    return file.suffix.lower() in {".pt", ".pth", ".bin", ".pkl"} or (
        head.startswith((b"PK\x03\x04", b"\x80")) and file.suffix.lower() != ".npz"
    )


def record(files: list[Path], choice: str) -> Recording:  # noqa: ARG001, there is nothing to choose
    """The recording that *files* hold together."""
    return Recording(joint_name(files), lambda hear: _batches(files, hear))


def _batches(files: list[Path], hear: Hear) -> Iterator[Batch]:
    for number, file in enumerate(files):
        with file.open("rb") as stream:
            archive = TorchFile(file, stream)
            for done, batch in _of_file(archive, file):
                hear((number + done) / len(files))
                yield batch


def _of_file(archive: TorchFile, file: Path) -> Iterator[tuple[float, Batch]]:
    content = archive.content
    if not isinstance(content, dict) or not {"logical_count", "records"} & content.keys():
        found = ", ".join(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise refuse(file, f"found {found[:200] or 'nothing'}, expected logical_count or records of SGLang's recorder")
    if "logical_count" in content:
        yield from _stat(_numbers(archive, content, "logical_count", (2, 3), file), file)
        return
    place = _numbers(archive, content, "last_physical_to_logical_map", (2,), file)
    if not isinstance(content["records"], list):
        raise refuse(file, "found no list", where="records")
    for at, entry in enumerate(content["records"]):
        if not isinstance(entry, dict):
            raise refuse(file, "found no dictionary", where=f"records[{at}]")
        for batch in _of_record(archive, entry, place, file):
            yield (at + 1) / len(content["records"]), batch


def _stat(counts: IntArray, file: Path) -> Iterator[tuple[float, Batch]]:
    steps = counts if counts.ndim == 3 else counts[None]
    check_counts(steps, file, "logical_count", MAX_COUNT)
    for step, layers in enumerate(steps):
        for layer, row in enumerate(layers):
            yield (step + 1) / len(steps), Batch(layer, step, counts=row)


def _of_record(archive: TorchFile, entry: dict[str, Any], place: IntArray, file: Path) -> Iterator[Batch]:
    step, source = (entry.get(name) for name in ("forward_pass_id", "rank"))
    step, source = (value if type(value) is int and 0 <= value < 2**62 else 0 for value in (step, source))
    if "topk_ids_of_layer" in entry:
        slots = _numbers(archive, entry, "topk_ids_of_layer", (3,), file)
        _same_layers(slots, place, file)
        for layer, picks in enumerate(check_picks(picks, file, "topk_ids_of_layer") for picks in slots):
            if picks.max(initial=-1) >= place.shape[1]:
                raise refuse(
                    file, f"found slot {picks.max()}, but the map has {place.shape[1]}", where="topk_ids_of_layer"
                )
            yield Batch(layer, step, source, picks=np.where(picks < 0, -1, place[layer][picks]))
        return
    counts = _numbers(archive, entry, "global_physical_count", (2,), file)
    _same_layers(counts, place, file)
    check_counts(counts, file, "global_physical_count", MAX_COUNT)
    if counts.shape != place.shape:
        raise refuse(
            file, f"found the shape {counts.shape}, but the map has {place.shape}", where="global_physical_count"
        )
    for layer, row in enumerate(counts):
        yield Batch(layer, step, source, counts=np.bincount(place[layer], weights=row))


def _numbers(archive: TorchFile, entry: dict[str, Any], name: str, dims: tuple[int, ...], file: Path) -> IntArray:
    tensor = entry.get(name)
    if not isinstance(tensor, Tensor) or len(tensor.shape) not in dims:
        found = f"a tensor of shape {tensor.shape}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise refuse(file, f"found {found}, expected a tensor of {' or '.join(map(str, dims))} axes", where=name)
    array = archive.array(tensor)
    if name == "last_physical_to_logical_map":
        check_picks(array, file, name)
        if array.size and array.min() < 0:
            raise refuse(file, "has a slot without an expert", where=name)
    return array


def _same_layers(array: IntArray, place: IntArray, file: Path) -> None:
    if len(array) != len(place):
        raise refuse(file, f"has records of {len(array)} layers and a map of {len(place)}")
