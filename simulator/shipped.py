"""Where the data files that come with rackcast lie: in the checkout, or beside the package in an installed wheel."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_LONGEST_NAME = 80


def shipped(*parts: str) -> Path:
    """The path of a shipped data file or folder, such as ``shipped("scenarios", "models")``."""
    installed = _PACKAGE / "_data"
    return (installed if installed.is_dir() else _PACKAGE.parent).joinpath(*parts)


def locate(name: str, *, kind: str, folder: Path, shipped_in: tuple[str, ...], suffixes: tuple[str, ...]) -> Path:
    """Find the file that *name* means: a path (absolute or relative to *folder*), or a shipped file by its stem.

    *kind* names the thing for the error. Raise :exc:`FileNotFoundError` that lists what is shipped.
    """
    home = shipped(*shipped_in)
    for base in (folder, Path(), home):
        for candidate in (base / name, *(base / f"{name}{suffix}" for suffix in suffixes)):
            if exists(candidate) and candidate.is_file():
                return candidate
    known = sorted(path.name.removesuffix(suffix) for suffix in suffixes for path in home.glob(f"*{suffix}"))
    short = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "..."
    close = get_close_matches(short, known, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise FileNotFoundError(f"no {kind} {short!r}{hint}: neither a file nor one of the shipped: {', '.join(known)}")


def exists(path: Path) -> bool:
    """Whether there is something at *path*. A name that no file system could hold exists nowhere, and is no error."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
