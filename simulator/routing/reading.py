"""Opening a recorded routing trace in whatever form its recorder wrote it."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from types import ModuleType

from simulator.routing import readers
from simulator.routing.recording import Hear, Recording, refuse, unheard
from simulator.routing.table import RoutingTable
from simulator.routing.trace import Trace, gather

_HEAD_BYTES = 4096
_SUFFIXES = ".csv, .json, .jsonl, .npy, .npz, .pt, .safetensors"


def open_recording(path: Path | str) -> Recording:
    """The recording in the file *path*, or in the folder *path* with a file per rank; see :mod:`.readers`.

    A file that leaves something open is told it after a hash: the domain in ``olmoe-1b-7b.json#c4``, the experts of a
    token in ``logits.npz#8``. Raise :exc:`RoutingError` with all problems.
    """
    file, choice = _split(path)
    try:
        if file.is_dir():
            reader, files = _of_folder(file)
        else:
            reader, files = _of_file(file), [file]
        recording: Recording = reader.record(files, choice)
    except OSError as error:
        raise refuse(file, f"cannot be read: {error.strerror}") from None
    return recording


def read_trace(path: Path | str, hear: Hear = unheard) -> Trace:
    """Everything that is kept of the recording *path*; *hear* is told how far reading is. Raise :exc:`RoutingError`."""
    trace = gather(open_recording(path), hear)
    if trace is None:
        raise refuse(_split(path)[0], "has no layer with any assignment: all counts are zero")
    return trace


def read_table(path: Path | str) -> RoutingTable:
    """The recording *path* summed over steps and ranks. Rows of zeros are dense layers and are left out;
    ``recorded_layers`` keeps the numbers of the others. Raise :exc:`RoutingError` with all problems.
    """
    return read_trace(path).table


def _split(path: Path | str) -> tuple[Path, str]:
    file, mark, choice = str(path).rpartition("#")
    return (Path(file), choice) if mark and not Path(path).exists() else (Path(path), "")


def _readers() -> list[ModuleType]:
    names = sorted(module.name for module in pkgutil.iter_modules(readers.__path__))
    return [import_module(f"{readers.__name__}.{name}") for name in names]


def _of_folder(folder: Path) -> tuple[ModuleType, list[Path]]:
    patterns = {reader.FOLDER: reader for reader in _readers() if reader.FOLDER}
    for pattern, reader in patterns.items():
        files = sorted(file for file in folder.glob(pattern) if file.is_file())
        if files:
            return reader, files
    raise refuse(folder, f"is a folder without files of a recorder: {', '.join(sorted(patterns))}")


def _of_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise refuse(file, "no such file" if not file.exists() else "is not a file")
    with file.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    # JSON with counts claims what is left, so that the others are asked first.
    for reader in sorted(_readers(), key=lambda reader: reader.__name__.endswith("json_counts")):
        if reader.recognises(file, head):
            return reader
    raise refuse(file, f"is of no format that is known: {_SUFFIXES}")
