"""Where the data files that come with rackcast lie: in the checkout, or beside the package in an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped(*parts: str) -> Path:
    """The path of a shipped data file or folder, such as ``shipped("scenarios", "models")``."""
    installed = _PACKAGE / "_data"
    return (installed if installed.is_dir() else _PACKAGE.parent).joinpath(*parts)


def locate(name: str, *, kind: str, folder: Path, shipped_in: tuple[str, ...], suffixes: tuple[str, ...]) -> Path:
    """Find the file that *name* means: a path (absolute or relative to *folder*), or a shipped file by its stem.

    *kind* names the thing for the error. Raise :exc:`FileNotFoundError` that lists what was shipped and where was looked.
    """
    home = shipped(*shipped_in)
    for base in (folder, Path(), home):
        for candidate in (base / name, *(base / f"{name}{suffix}" for suffix in suffixes)):
            if candidate.is_file():
                return candidate
    known = sorted(path.stem for suffix in suffixes for path in home.glob(f"*{suffix}"))
    raise FileNotFoundError(f"no {kind} {name!r}: neither a file nor one of the shipped: {', '.join(known)}")
