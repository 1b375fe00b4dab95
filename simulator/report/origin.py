"""Where a forecast comes from, so that whoever reads about it can make it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import join


@dataclass(frozen=True, slots=True)
class Origin:
    """What was asked, and of which version."""

    name: str
    """The scenario, as it was asked for."""
    changes: Sequence[str]
    """Values of `--set`."""
    scenario: str
    """YAML, with what the changes made of it."""
    version: str
    """Of rackcast."""
    flags: Sequence[str] = ()
    """Of `rackcast run`, beside those."""

    @property
    def command(self) -> str:
        """That forecast it, as it is typed."""
        return " ".join((self.asking("run"), *self.flags))

    def asking(self, verb: str) -> str:
        """The command that asks something else of the same scenario."""
        return join(("rackcast", verb, self.name, *(word for change in self.changes for word in ("--set", change))))
