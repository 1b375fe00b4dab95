import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1: these tests interpret the kernels on the CPU", allow_module_level=True)

from kernel_checks import distance

STEP = Path(__file__).with_name("kimi_gradients.py")


def step(out: Path, ranks: int, sequences: int, *, recompute: bool) -> dict:
    """What a step leaves on so many ranks with so many sequences each."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = [*launch, str(STEP), str(out), str(sequences), str(int(recompute))]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return torch.load(out)


def test_two_ranks_that_exchange_rows_and_recompute_find_the_gradients_of_one(tmp_path: Path) -> None:
    alone = step(tmp_path / "one.pt", 1, 2, recompute=False)
    shared = step(tmp_path / "two.pt", 2, 1, recompute=True)
    assert torch.isfinite(alone["loss"])
    assert shared["loss"].item() == pytest.approx(alone["loss"].item(), rel=1e-6)
    # Two layers of delta attention with eight adapters, one of latent attention with six; in two feed-forward parts two
    # on latent projections and three on shared experts.
    assert len(alone["gradients"]) == 2 * (2 * 8 + 6 + 2 * (2 + 3))
    assert alone["gradients"].keys() == shared["gradients"].keys()
    worst = max(distance(shared["gradients"][name], wanted) for name, wanted in alone["gradients"].items())
    assert worst < 1e-5
    assert min(gradient.norm().item() for gradient in alone["gradients"].values()) > 0
    # Every token of both sequences goes to two experts in either layer, wherever these are.
    assert shared["rows"] == alone["rows"]
    assert [sum(rows) for rows in alone["rows"]] == [2 * 20 * 2] * 2
