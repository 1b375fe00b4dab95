"""A scenario whose parts read well and do not go together."""

from __future__ import annotations

from collections.abc import Iterable


class Refused(ValueError):  # noqa: N818, the name says what happened
    """A combination of model, cluster and split that cannot be simulated; *messages* lists every reason."""

    def __init__(self, messages: Iterable[str]) -> None:
        self.messages: tuple[str, ...] = tuple(messages)
        super().__init__(self.messages)

    def __str__(self) -> str:
        return "\n".join(self.messages)
