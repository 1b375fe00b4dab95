import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from test_house import tracked_files

ROOT = Path(__file__).parents[1]
DATA_FOLDERS = ("hardware_profiles", "scenarios")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--quiet"]
    built = subprocess.run([*command, "--wheel-dir", str(folder)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("rackcast-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the content of the wheel, as pip would put it beside other packages."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def rackcast(installed: Path, empty: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed program, not the one of the checkout, in an *empty* folder."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-W", "error", "-m", "simulator", *arguments]
    return subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_holds_every_data_file_and_no_other(wheel: Path) -> None:
    in_checkout = {path.relative_to(ROOT).as_posix() for path in tracked_files()}
    expected = {name for name in in_checkout if name.startswith(tuple(f"{folder}/" for folder in DATA_FOLDERS))}
    home = "simulator/_data/"
    held = {name.removeprefix(home) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(home)}
    assert held == expected


def test_the_wheel_holds_the_package_its_types_and_its_licence(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in tracked_files() if path.suffix == ".py"}
    assert {name for name in modules if name.startswith("simulator/")} <= held
    assert "simulator/py.typed" in held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    assert {name.split("/")[0] for name in held} == {"simulator", wheel.name.rsplit("-py3", 1)[0] + ".dist-info"}


def test_an_installed_package_reads_its_own_data_and_not_the_checkout(installed: Path, tmp_path: Path) -> None:
    source = "from simulator.shipped import shipped; print(shipped('scenarios', 'models'))"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", source]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()) == installed / "simulator" / "_data" / "scenarios" / "models"


def test_an_installed_package_forecasts_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    ran = rackcast(installed, tmp_path, "fit", "llama3-8b-fsdp2-2xh200", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["fits"] is True
    assert list(tmp_path.iterdir()) == []


def test_an_installed_package_writes_its_files_where_it_is_told(installed: Path, tmp_path: Path) -> None:
    ran = rackcast(installed, tmp_path, "run", "llama3-8b-fsdp2-2xh200", "--out", "charts")
    assert ran.returncode == 0, ran.stderr
    written = {path.name for path in (tmp_path / "charts").iterdir()}
    assert {"report.html", "timeline.png", "memory.png", "summary.json"} <= written


def test_the_constraints_are_exact_versions_of_names_only() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert all(line.count("==") == 1 and not set(line) & set("@/:;+ ") for line in pinned)
    assert pinned == sorted(pinned, key=str.lower)


def test_the_constraints_name_every_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {requirement.split(">=")[0] for requirement in direct}
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert names <= pinned
