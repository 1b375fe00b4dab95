"""A sweep of 10,000 cases that is killed once and goes on: its pace, and whether anything was lost or ran twice.

python tools/long_sweep.py local OUT        # processes of this machine
python tools/long_sweep.py dask OUT         # a Dask scheduler with two workers, one of which is killed as well
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

HERE = Path(__file__).resolve().parent.parent
SCENARIO = HERE / "tests" / "validation" / "h200" / "qwenmoe-4l-b1-s16384-recompute.yaml"
"""Four layers of Qwen3-30B-A3B, measured on one H200."""
OVER = {
    "training.sequence_length": range(256, 256 + 500 * 32, 32),
    "training.recompute": ("none", "full"),
    "training.execution": ("eager", "compiled"),
    "cluster.node": ("hgx-h200", "hgx-h100", "hgx-b200", "hgx-h800", "mi300x-oam"),
}
CASES = 10_000
KILLED_AT = 3_000


def main(backend: str, out: Path) -> None:
    """Run the sweep, kill it, run it again, and print what was found."""
    over = [word for path, values in OVER.items() for word in ("--over", f"{path}={','.join(map(str, values))}")]
    ours = [sys.executable, "-m", "simulator", "plan", str(SCENARIO), *over]
    command = [*ours, "--backend", backend, "--out", str(out), "--json"]
    with cluster(backend) as (environment, lose_a_worker):
        began = time.monotonic()
        first = subprocess.Popen(  # noqa: S603, our own command
            command, stdout=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        for until_rows in (KILLED_AT // 2, KILLED_AT):
            while rows(out) < until_rows and first.poll() is None:
                time.sleep(1)
            lose_a_worker()
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        kept, until = rows(out), time.monotonic()
        print(f"killed after {until - began:.0f} s with {kept} cases written: {kept / (until - began):.1f} a second")
        answer = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True)  # noqa: S603
        ended = time.monotonic()
    counted = json.loads(answer.stdout)["counted"]
    print(f"second run: {counted}, {ended - until:.0f} s, {counted['run'] / (ended - until):.1f} a second")
    figures = "count(*), count(distinct key), count(*) filter (verdict = 'failed')"
    total, distinct, failed = duckdb.read_parquet(f"{out}/*.parquet").aggregate(figures).fetchall()[0]
    print(f"in parquet: {total} rows, {distinct} cases, {failed} failed")
    assert (total, distinct) == (CASES, CASES), "a case is lost, or there twice"
    assert counted["known"] == kept, "a case that was finished ran again"


def rows(out: Path) -> int:
    """Finished cases on disk."""
    if not list(out.glob("*.parquet")):
        return 0
    return len(duckdb.read_parquet(f"{out}/*.parquet"))


@contextmanager
def cluster(backend: str) -> Iterator[tuple[dict[str, str], Callable[[], None]]]:
    """The environment to run *backend* in, and what kills one of its Dask workers, in whose place another starts."""
    if backend == "local":
        yield dict(os.environ), lambda: None
        return
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as found:

        def kill() -> None:
            os.kill(found.workers[0].process.pid, signal.SIGKILL)

        yield os.environ | {"DASK_SCHEDULER_ADDRESS": found.scheduler_address}, kill


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("local", "dask"):
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]))
