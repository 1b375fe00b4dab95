import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "simulator").rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LONGEST_FILE_LINES = 500
LONGEST_FUNCTION_LINES = 80
FOLDER_OF_SOMEBODY = re.compile(r"(?<![\w.*-])/(?:home|root|mnt|work|workspace|opt|Users)/\w")
PLACEHOLDER = re.compile(r"/[A-Z]+(?:[./]|$)")
PACKAGE_INDEX = re.compile(r"index-url|find-links|pypi\.|/simple\b")


def tracked_files() -> list[Path]:
    """Files of the project as git sees them, those about to be added included."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if found.returncode:
        pytest.skip("not a git checkout: what belongs to the project is not known")
    return [path for name in found.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_of_the_package_is_longer_than_500_lines() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in MODULES}
    assert {path: count for path, count in lines.items() if count > LONGEST_FILE_LINES} == {}


def test_no_function_of_the_package_is_longer_than_80_lines() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION_LINES
    ]
    assert too_long == []


def test_every_page_that_a_reader_looks_for_is_there() -> None:
    wanted = ["README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/how-to-add.md"]
    assert [name for name in wanted if not (ROOT / name).is_file() or not (ROOT / name).read_text().strip()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if ":" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"`((?:simulator|hardware_profiles|scenarios|tests|tools|docs)/[\w./-]+)`", page.read_text())
    assert [name for name in named if not PLACEHOLDER.search(name) and not (ROOT / name).exists()] == []


def test_every_entry_of_the_changelog_says_what_kind_it_is() -> None:
    entries = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("- ")]
    assert entries
    assert [e for e in entries if not re.match(r"- \[(NEW|FIX|CHANGE|BREAKING)\] ", e)] == []


def test_nothing_names_a_folder_of_a_machine_or_a_package_index() -> None:
    found = []
    for path in tracked_files():
        if path == Path(__file__) or path.suffix in {".png", ".parquet", ".gz"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if FOLDER_OF_SOMEBODY.search(line) or PACKAGE_INDEX.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number} {line.strip()[:80]}")
    assert found == []
