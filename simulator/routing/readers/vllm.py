"""vLLM's routed experts: arrays [tokens, MoE layers, top_k] in .npy or .npz, or API responses as JSON lines.

Servers with ``--enable-return-routed-experts`` return ``prompt_routed_experts`` and, in each choice,
``routed_experts``: nested lists in v0.21, a .npy in base64 in later ones. Saved arrays may have these names or, in a
.npy, none. Each response, or array, counts as a step. Layers are numbered as in the array, where dense ones may be
missing or all zeros. The number of experts is taken as one more than the highest that was chosen.
"""

from __future__ import annotations

import base64
import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from simulator.routing import npz
from simulator.routing.recording import MAX_LAYERS, Batch, Hear, Recording, check_picks, refuse
from simulator.routing.table import IntArray

FOLDER = ""
MAX_LINE_BYTES = 256_000_000
_KEY = b'routed_experts"'


def recognises(file: Path, head: bytes) -> bool:
    """A .npy, an .npz with arrays of these names, or JSON in which one of the keys occurs."""
    suffix = file.suffix.lower()
    if suffix == ".npz":
        return head.startswith(b"PK") and any("routed_experts" in name for name in npz.names(file))
    if suffix not in {".json", ".jsonl", ".ndjson"} or not head:
        return suffix == ".npy"
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(_KEY) >= 0


def record(files: list[Path], choice: str) -> Recording:  # noqa: ARG001, there is nothing to choose
    """The recording in the one file."""
    (file,) = files
    read = _of_arrays if file.suffix.lower() in {".npy", ".npz"} else _of_responses
    return Recording(file.stem, lambda hear: read(file, hear), numbered=False)


def _of_arrays(file: Path, hear: Hear) -> Iterator[Batch]:
    chosen = [name for name in npz.names(file) if not name or "routed_experts" in name]
    for step, name in enumerate(chosen):
        for piece in npz.rows(file, name):
            yield from _layers(piece, step, file, name)
        hear((step + 1) / len(chosen))


def _of_responses(file: Path, hear: Hear) -> Iterator[Batch]:
    size, done, step = file.stat().st_size, 0, 0
    with file.open("rb") as stream:
        first = stream.readline(MAX_LINE_BYTES)
        stream.seek(0)
        # A response may be one line of many or, indented, the whole file.
        lines = iter(lambda: stream.readline(MAX_LINE_BYTES), b"") if _is_json(first) else [stream.read(MAX_LINE_BYTES)]
        for number, line in enumerate(lines, 1):
            done += len(line)
            hear(done / size)
            if line.strip():
                for where, routed in _found(_parse(line, file, number)):
                    for array in _arrays(routed, file, number, where):
                        yield from _layers(array, step, file, where)
                step += 1


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _parse(line: bytes, file: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise refuse(file, f"is not JSON: {error}", number) from None
    except RecursionError:
        raise refuse(file, "is nested too deeply", number) from None


def _found(response: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(response, dict):
        return
    choices = response.get("choices")
    for holder in (response, *(choices if isinstance(choices, list) else ())):
        for name in ("prompt_routed_experts", "routed_experts"):
            if isinstance(holder, dict) and holder.get(name):
                yield name, holder[name]


def _arrays(routed: Any, file: Path, number: int, where: str) -> Iterator[np.ndarray[Any, Any]]:
    """*routed*, in as many pieces as a .npy is read in."""
    if not isinstance(routed, str):
        yield _array(routed, file, number, where)
        return
    try:
        content = base64.b64decode(routed, validate=True)
    except ValueError:
        raise refuse(file, "found a text that is not base64", number, where) from None
    yield from npz.decoded(content, file, where)


def _array(routed: Any, file: Path, number: int, where: str) -> np.ndarray[Any, Any]:
    try:
        array = np.array(routed)
    except (ValueError, OverflowError):
        array = np.empty(0, dtype=object)
    if array.dtype.kind != "i":
        raise refuse(file, "found no lists of whole numbers, equally long at each depth", number, where)
    return array


def _layers(array: np.ndarray[Any, Any], step: int, file: Path, where: str) -> Iterator[Batch]:
    if array.ndim != 3 or array.dtype.kind not in "iu" or array.shape[1] > MAX_LAYERS:
        found = f"found {array.dtype} of shape {array.shape}"
        raise refuse(file, f"{found}, expected whole numbers [tokens, at most {MAX_LAYERS} layers, top_k]", where=where)
    for layer in range(array.shape[1]):
        picks = check_picks(array[:, layer].astype(np.int64), file, where)
        yield Batch(layer, step, picks=picks[_chosen(picks)])


def _chosen(picks: IntArray) -> np.ndarray[Any, Any]:
    """Which tokens a router chose for, [tokens]: what none wrote to, such as a dense layer, is zero throughout."""
    if picks.shape[1] < 2:
        return np.ones(len(picks), dtype=bool)
    return np.asarray((picks != picks[:, :1]).any(axis=1))
