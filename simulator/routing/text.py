"""The whole text of a recording that a person could have written: JSON or CSV."""

from __future__ import annotations

from pathlib import Path

from simulator.routing.recording import refuse

MAX_FILE_BYTES = 64_000_000


def read_text(file: Path) -> str:
    """The content of *file*. Raise :exc:`RoutingError` where it is too large or not UTF-8."""
    with file.open("rb") as stream:
        content = stream.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise refuse(file, f"is larger than {MAX_FILE_BYTES // 1_000_000} MB; sum its steps first")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise refuse(file, f"is not text: byte 0x{content[error.start]:02x} is not UTF-8", line) from None
