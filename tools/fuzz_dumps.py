"""Damages topology dumps at random for a while and reads them: each is read or refused, and none ends in a fault.

python tools/fuzz_dumps.py SECONDS [SEED]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from test_hardware_import_hostile import DUMPS, ORIGINALS, mutated, read


def main(seconds: float, seed: int) -> int:
    """Damage and read for so many *seconds*; print what came of it. 1 when anything but a refusal was raised."""
    chance = random.Random(seed)  # noqa: S311, no secret
    counted, faults = {"read": 0, "refused": 0}, []
    dumps = [*DUMPS, *ORIGINALS]
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < until:
            dump, damage = chance.choice(dumps), chance.randrange(2**32)
            path = Path(folder) / dump.name
            path.write_bytes(mutated(dump.read_bytes(), damage))
            try:
                counted["refused" if read(path) is None else "read"] += 1
            except Exception as error:  # noqa: BLE001, every fault is what is looked for
                faults.append(f"{dump.name}, damage {damage}: {type(error).__name__}: {error}")
    told = ", ".join(f"{count:,} {what}" for what, count in counted.items())
    print(f"{len(dumps)} dumps damaged: {told}, {len(faults)} faults", *faults[:20], sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
