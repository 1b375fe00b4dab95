import pytest
from small_jobs import Small

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast

OPTIMIZER, PARAMETERS = "training.offload.optimizer=1", "training.offload.parameters=true"
NVME = "training.offload.optimizer=nvme"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("training.offload.threads=4",), "nothing for the host's cores to update"),
        ((PARAMETERS, OPTIMIZER), "on the host anyway"),
        ((PARAMETERS, "training.zero=1"), "allowed: zero 3"),
        ((NVME, "training.zero=1"), "found nvme, which is ZeRO-3's, with zero 1; allowed: zero 3"),
        ((NVME, "training.optimizer.state_dtype=bf16"), "state_dtype fp32"),
        ((NVME, "cluster.node=hgx-h20"), "HGX H20 has no drives; allowed: 1, or a node file with nvme"),
        ((NVME, "training.offload.threads=16"), "nearest: 12"),
        (("training.offload.parameters=nvme",), "where the optimizer is not; allowed: optimizer nvme, or true"),
        ((OPTIMIZER, "training.offload.nvme.share=0.5"), "nothing is on drives; leave it out, or optimizer nvme"),
        ((NVME, "training.offload.nvme.direct=true"), "no parameters are on drives for cards to read"),
        ((OPTIMIZER, "training.zero=0", "parallel={dp_replicate: 16}"), "not simulated under zero 0"),
        (("training.offload.optimizer=0.5", "training.zero=2"), "under zero 2 it moves as a whole; allowed: 1"),
        ((OPTIMIZER, "training.offload.zenflow={}"), "as DeepSpeed's ZeRO-2 has it, found zero 3; allowed: zero 2"),
        (("training.offload.zenflow={}", "training.zero=2"), "found optimizer 0.0; allowed: optimizer 1"),
        (
            ("training.offload.optimizer=1", "training.zero=2", "training.deepspeed.overlap_comm=true"),
            "allowed: overlap_comm false",
        ),
        (("training.offload.optimizer=0.5",), "found 0.5, but under zero 3 it moves as a whole; allowed: 1"),
        ((OPTIMIZER, "training.optimizer.name=sgd"), "allowed: adamw"),
        ((OPTIMIZER, "training.optimizer.state_dtype=bf16"), "state_dtype fp32"),
        ((OPTIMIZER, "training.fsdp.reduce_dtype=fp32"), "DeepSpeed reduces in bf16"),
        ((PARAMETERS, "training.fsdp.reshard_after_forward=2"), "parts kept nearby"),
        (
            (PARAMETERS, "training.offload.threads=16"),
            r"threads\(16\) \* 8 cards of a node = 128, but HGX H200 has 96 cores; nearest: 12",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(small: Small, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refused, match=message):
        assemble_job(*small("dense", *overrides))


def test_the_summary_tells_the_wait_for_cores_and_what_the_node_holds(small: Small) -> None:
    summary = forecast(*small("dense", OPTIMIZER)).summary
    # 71,312,384 elements / 16 x (8 + 28 + 8) bytes at 18.6 GB/s of one core, and before it the last gradients' way out.
    cores_s = 71_312_384 / 16 * 44 / 18.6e9
    assert cores_s < summary["time"]["exposed_host_s"] < 1.05 * cores_s
    node = summary["memory"]["ddr"]["node"]
    assert node["cards"] == 8
    assert node["peak_bytes"] == pytest.approx(8 * summary["memory"]["ddr"]["peak_bytes"])


def test_the_summary_tells_the_wait_for_drives_and_what_they_hold(small: Small) -> None:
    summary = forecast(*small("dense", NVME)).summary
    # 8 cards x 71,312,384 elements / 16 x (16 B read at 55.6 GB/s, 12 B written at 33.9), 4 B of gradients before.
    node_bytes = 8 * 71_312_384 / 16
    read_s, write_s = 16 * node_bytes / 55.6e9, 12 * node_bytes / 33.9e9
    assert read_s + write_s < summary["time"]["exposed_drives_s"] < 1.05 * (read_s + write_s + 4 * node_bytes / 33.9e9)
    block = summary["memory"]["nvme"]
    assert block["breakdown"]["optimizer"] == pytest.approx(12 * node_bytes / 8, rel=1e-3)
    assert block["node"]["peak_bytes"] == pytest.approx(16 * node_bytes, rel=1e-3)
    assert block["node"]["capacity_bytes"] == 30.72e12


def test_streams_outside_the_card_are_no_communicators(small: Small) -> None:
    plain, away, far = (
        forecast(*small("dense", *more)).summary["memory"]["hbm"] for more in ((), (PARAMETERS,), (NVME,))
    )
    assert away["breakdown"]["context"] == plain["breakdown"]["context"] == far["breakdown"]["context"]
