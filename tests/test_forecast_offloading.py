import pytest
from small_jobs import Small

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast

OPTIMIZER, PARAMETERS = "training.offload.optimizer=1", "training.offload.parameters=true"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("training.offload.threads=4",), "nothing for the host's cores to update"),
        ((PARAMETERS, OPTIMIZER), "on the host anyway"),
        ((PARAMETERS, "training.zero=1"), "allowed: zero 3"),
        ((OPTIMIZER, "training.zero=2"), "not simulated under zero 2"),
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


def test_a_stream_to_the_host_is_no_communicator(small: Small) -> None:
    plain, away = (forecast(*small("dense", *more)).summary["memory"]["hbm"] for more in ((), (PARAMETERS,)))
    assert away["breakdown"]["context"] == plain["breakdown"]["context"]
