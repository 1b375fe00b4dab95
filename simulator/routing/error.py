"""What is wrong with a routing trace, all of it at once."""

from __future__ import annotations

from simulator.documents import InvalidDocument


class RoutingError(InvalidDocument):
    """A routing trace that cannot be used; each problem says where, what was found and what is allowed."""
