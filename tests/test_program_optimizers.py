import pytest
from small_jobs import Small, lower

from simulator.engine.task import Task
from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.parallel.sharding import Matrix
from simulator.program.optimizer import Optimizer
from simulator.program.optimizers import least_moment_bytes, moment_bytes, rules
from simulator.program.optimizers.muon import newton_schulz, scratch_bytes

BF16 = Optimizer("muon", stored_bytes=2, moment_bytes=2)


def update_of(small: Small, *overrides: str, kind: str = "dense") -> list[Task]:
    return [task for task in lower(small(kind, *overrides)).tasks if task.phase == "optimizer"]


def test_every_optimizer_is_found_by_its_name() -> None:
    assert sorted(rules()) == ["adamw", "adamw_8bit", "muon", "sgd"]


@pytest.mark.parametrize(
    ("name", "elements", "matrix", "sizes"),
    [
        ("adamw", 1000.0, True, (2000.0, 2000.0)),
        ("sgd", 1000.0, True, ()),
        ("muon", 1000.0, True, (2000.0,)),
        ("muon", 1000.0, False, (2000.0, 2000.0)),
        # One byte each, 4 for every 256, and a table of 256 values.
        ("adamw_8bit", 8192.0, True, (8192.0, 128.0, 1024.0) * 2),
        # Too small, and no multiple of a block: as the parameters are.
        ("adamw_8bit", 2048.0, True, (4096.0, 4096.0)),
        ("adamw_8bit", 8200.0, False, (16400.0, 16400.0)),
    ],
)
def test_moments_by_hand(name: str, elements: float, matrix: bool, sizes: tuple[float, ...]) -> None:
    assert rules()[name].moments(elements, matrix, BF16) == sizes


def test_least_bytes_of_moments() -> None:
    assert (moment_bytes(BF16, matrix=False), least_moment_bytes(BF16)) == (4, 2)
    assert least_moment_bytes(Optimizer("adamw_8bit", 2, 0)) == pytest.approx(2 + 2 * 4 / 256, rel=1e-5)


def test_newton_schulz_takes_twenty_m_m_n_and_ten_m_cubed() -> None:
    m, n = 2048, 8192
    for matrix in (Matrix(m, n), Matrix(n, m)):
        assert sum(kernel.flops for kernel in newton_schulz(matrix)) == 20 * m * m * n + 10 * m**3


@pytest.mark.parametrize(
    ("matrix", "measured"), [(Matrix(8192, 2048), 117_440_512), (Matrix(4096, 14336), 419_430_400)]
)
def test_temporaries_of_newton_schulz_are_those_measured(matrix: Matrix, measured: int) -> None:
    assert scratch_bytes(matrix, 2) == measured


def test_muon_gathers_orthogonalises_and_scatters_before_adamw(small: Small) -> None:
    tasks = update_of(small, "training.optimizer={name: muon, state_dtype: bf16, master_weights: false}")
    names = [task.name for task in tasks]
    assert names == ["momentum", "gather matrices", "Newton-Schulz", "scatter updates", "step", "optimizer"]
    sent = [task.collective.wire_bytes for task in tasks if task.collective is not None]
    # A sixteenth of four layers' matrices in bf16, of which a sixteenth stays.
    assert [float(size[0]) for size in sent] == [2 * 4 * (4 + 12) * 2**20 / 16 * 15 / 16] * 2  # type: ignore[index]


def test_muon_on_one_card_sends_nothing(small: Small) -> None:
    one = ("cluster.accelerators=1", "parallel.dp_shard=1")
    tasks = update_of(small, *one, "training.optimizer={name: muon}")
    assert [task.name for task in tasks] == ["momentum", "Newton-Schulz", "step", "optimizer"]


def test_foreach_holds_the_roots_of_all_second_moments(small: Small) -> None:
    (task,) = update_of(small, "training.optimizer.implementation=foreach")
    (roots,) = task.allocates
    assert roots.bytes == 4 * (4 * (4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024) + 2 * 2048 * 1024 + 1024) / 16


def test_8bit_values_exist_for_the_largest_tensor_and_the_host_works_for_each(small: Small) -> None:
    (task,) = update_of(small, "training.optimizer={name: adamw_8bit, master_weights: false}")
    (values,) = task.allocates
    assert values.bytes == 2 * (4 + 4 / 256) * 1024 * 4096 / 16
    # Seven matrices and two norms in each of four layers, table, norm and head.
    assert task.host_ns == (4 * 9 + 3) * 840_000


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("training.optimizer={name: adamw_8bit, state_dtype: bf16}",), "state_dtype: adamw_8bit keeps moments of one"),
        (("training.optimizer={name: muon, implementation: foreach}",), "implementation: muon comes in one way"),
        (("training.optimizer.name=adamw_8bit", "training.zero=1"), "name: found adamw_8bit, which works tensor"),
    ],
)
def test_what_does_not_go_together_is_refused(small: Small, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refused, match=message):
        assemble_job(*small("dense", *overrides))
