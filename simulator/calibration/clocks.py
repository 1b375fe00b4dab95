"""Clocks, power and temperature of the GPU while something runs, as the driver's tool prints them."""

from __future__ import annotations

import statistics
import subprocess
import threading
from types import TracebackType

QUERY = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
NAMES = ("sm_mhz", "memory_mhz", "power_w", "temperature_c")
EVERY_MS = "500"


class Clocks:
    """Watches from entry to exit; the tool may be missing, and then nothing is seen."""

    def __init__(self) -> None:
        self._seen: list[list[float]] = []
        self._tool: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Clocks:
        command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits", "-i", "0"]
        try:
            self._tool = subprocess.Popen(  # noqa: S603 - the driver's tool, no input
                [*command, "-lms", EVERY_MS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            return self
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._tool is not None and self._reader is not None:
            self._tool.terminate()
            self._tool.wait()
            self._reader.join(timeout=2)

    def seen(self) -> dict[str, list[float]]:
        """[least, median, most] of each since the last call."""
        seen, self._seen = self._seen, []
        columns = zip(NAMES, zip(*seen, strict=True), strict=True) if seen else ()
        return {name: [min(values), statistics.median(values), max(values)] for name, values in columns}

    def _read(self) -> None:
        assert self._tool is not None
        assert self._tool.stdout is not None
        for line in self._tool.stdout:
            try:
                self._seen.append([float(value) for value in line.split(",")])
            except ValueError:  # "[N/A]", on parts that do not tell
                continue
