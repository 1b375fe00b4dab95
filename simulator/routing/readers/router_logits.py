"""Router logits of Hugging Face transformers (``output_router_logits=True``), saved with numpy as .npz.

One array [tokens, experts] a layer, its number at the end of the name: ``layer_3``, or ``arr_3`` as ``np.savez`` names
what has no name. A token's experts are those with the highest logits. How many is told by an array ``top_k`` of one
number, or after the file's name, as in ``logits.npz#8``. Routers that add a bias or limit nodes choose otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from simulator.documents.problem import escape
from simulator.routing import npz
from simulator.routing.recording import MAX_EXPERTS, MAX_LAYERS, Batch, Hear, Recording, refuse

FOLDER = ""
_TOP_K = "top_k"


def recognises(file: Path, head: bytes) -> bool:
    """An .npz without arrays of chosen experts."""
    return (
        file.suffix.lower() == ".npz"
        and head.startswith(b"PK")
        and not any("routed_experts" in name for name in npz.names(file))
    )


def record(files: list[Path], choice: str) -> Recording:
    """The recording in the one file; *choice* is the number of experts that a token chooses."""
    (file,) = files
    names = npz.names(file)
    top_k = _top_k(file, names, choice)
    layers = {name: _layer(name, file) for name in names if name != _TOP_K}
    return Recording(file.stem, lambda hear: _batches(file, layers, top_k, hear))


def _batches(file: Path, layers: dict[str, int], top_k: int, hear: Hear) -> Iterator[Batch]:
    for done, (name, layer) in enumerate(layers.items(), 1):
        for logits in npz.rows(file, name):
            if logits.ndim != 2 or logits.dtype.kind != "f" or not top_k <= logits.shape[1] <= MAX_EXPERTS:
                found = f"found {logits.dtype} of shape {logits.shape}"
                wanted = f"expected floating-point logits [tokens, experts] of {top_k} to {MAX_EXPERTS} experts"
                raise refuse(file, f"{found}, {wanted}", where=escape(name))
            picks = np.argpartition(-logits, top_k - 1, axis=1)[:, :top_k]
            # Experts that no token chose are known to exist, by the width of the logits.
            counts = np.bincount(picks.ravel(), minlength=logits.shape[1])
            yield Batch(layer, picks=picks, counts=counts)
        hear(done / len(layers))


def _top_k(file: Path, names: list[str], choice: str) -> int:
    found = choice
    if not choice and _TOP_K in names:
        found = "".join(str(piece.item()) for piece in npz.rows(file, _TOP_K) if piece.size == 1)
    if not re.fullmatch(r"[0-9]{1,4}", found) or int(found) < 1:
        message = f"found {escape(found)!r}, expected the experts of a token as an array top_k, or as FILE#8"
        raise refuse(file, message, where=_TOP_K)
    return int(found)


def _layer(name: str, file: Path) -> int:
    found = re.search(r"([0-9]{1,9})$", name)
    if not found or int(found[1]) >= MAX_LAYERS:
        message = f"found an array {escape(name)!r}, expected names that end in a layer number up to {MAX_LAYERS - 1}"
        raise refuse(file, message)
    return int(found[1])
