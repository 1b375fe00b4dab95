"""Rates of PCIe links from what the kernel prints of them."""

from __future__ import annotations

import re

_PAYLOAD = {2.5: 0.8, 5.0: 0.8, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130, 64.0: 242 / 256}
"""Bits of payload in a bit on the wire, by GT/s: 8b/10b, 128b/130b, and the flits of PCIe 6."""


def rate_bytes_per_s(speed: str, width: str) -> float | None:
    """One direction of "32.0 GT/s PCIe" and "16" lanes: 63.0e9. None where the words are not of that kind."""
    found = re.match(r"([0-9]{1,3}(?:\.[0-9])?) ?GT/s", speed)
    if not found or not re.fullmatch("[0-9]{1,2}", width):
        return None
    transfers = float(found[1])
    rate = transfers * 1e9 / 8 * _PAYLOAD.get(transfers, 128 / 130) * int(width)
    return rate or None
