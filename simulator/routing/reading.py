"""Reading a recorded routing trace from a file, in the forms that public recorders write as text.

Recorders that save with ``torch.save`` or pickle are refused, since opening such a file runs what it holds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simulator.documents import Problem
from simulator.routing.csv_counts import read_csv
from simulator.routing.error import RoutingError
from simulator.routing.json_counts import read_json
from simulator.routing.table import RoutingTable

MAX_FILE_BYTES = 64_000_000
_PICKLES = (b"PK\x03\x04", b"\x80")


def read_table(path: Path | str) -> RoutingTable:
    """The table in the file *path*: JSON (see :mod:`.json_counts`) or, by its suffix, CSV (see :mod:`.csv_counts`).

    A file with several domains needs one named: ``olmoe-1b-7b.json#c4``. Rows of zeros are dense layers and are left
    out; ``recorded_layers`` keeps the numbers of the others. Raise :exc:`RoutingError` with all problems.
    """
    file, domain = _split(path)
    text = _text(file)
    recording = read_csv(text, str(file)) if file.suffix.lower() == ".csv" else read_json(text, str(file), domain)
    moe = np.flatnonzero(recording.counts.sum(axis=1))
    if not moe.size:
        raise _refuse(file, f"all counts of its {len(recording.counts)} layers are zero")
    return RoutingTable(
        recording.counts[moe],
        name=f"{file.stem}#{domain}" if domain else file.stem,
        source=recording.source,
        recorded_layers=tuple(recording.layer_numbers[row] for row in moe) if recording.layer_numbers else (),
    )


def _split(path: Path | str) -> tuple[Path, str]:
    file, mark, domain = str(path).rpartition("#")
    return (Path(file), domain) if mark and not Path(path).exists() else (Path(path), "")


def _text(file: Path) -> str:
    try:
        if not file.is_file():
            raise _refuse(file, "no such file" if not file.exists() else "is not a file")
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _refuse(file, f"cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise _refuse(file, f"is larger than {MAX_FILE_BYTES // 1_000_000} MB; sum its steps first")
    if content.startswith(_PICKLES):
        raise _refuse(file, 'is a pickle, which is not opened; save {"logical_count": ....tolist()} as JSON instead')
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refuse(file, f"is not text: byte 0x{content[error.start]:02x} is not UTF-8", line) from None


def _refuse(file: Path, message: str, line: int | None = None) -> RoutingError:
    return RoutingError([Problem(str(file), line, "", message)])
