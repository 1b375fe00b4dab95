import pytest
from hypothesis import settings
from small_jobs import Small, lower, write_small

from simulator.forecast.reading import read_scenario
from simulator.program.stage import StageProgram

settings.register_profile("steady", deadline=None, derandomize=True, database=None)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """The small scenarios, in a folder of their own."""
    return write_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def main_job() -> StageProgram:
    """One micro-batch of the shipped main job: Kimi K3.1, LoRA, 128 H200, experts over 64 ranks."""
    return lower(read_scenario("kimi-k3-lora-128xh200"))
