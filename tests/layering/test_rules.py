"""Rules that neither the linter nor the import contracts can express."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import accel_nb

from . import MODULES, PACKAGE, PROJECT

FORBIDDEN_NAMES = {"utils", "helpers", "helper", "util", "common", "manager", "misc", "core"}
FOR_PEOPLE_WHO_MOVE = {PACKAGE / "utils.py"}
"""Upstream's public module name; re-exports only."""

MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:home|root|work|Users|opt|mnt|srv)/(?!me/)\w")
"""A folder of a person or a mount. Nobody's is called "me": examples may use that."""


def module_id(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def environment_uses(source: str) -> list[int]:
    """Lines where `source` reads or writes this process's environment."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv", "putenv", "unsetenv"}
            and isinstance(node.value, ast.Name) and node.value.id == "os")
        or (isinstance(node, ast.ImportFrom) and node.module == "os"
            and any(alias.name in {"environ", "environb", "getenv", "putenv", "unsetenv"} for alias in node.names))
    ]  # fmt: skip


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path != PACKAGE / "protocol" / "environment.py"], ids=module_id
)
def test_only_the_environment_contract_touches_the_environment(path: Path) -> None:
    assert environment_uses(path.read_text(encoding="utf-8")) == []


def test_each_way_to_touch_the_environment_is_found() -> None:
    source = "import os\nos.environ['A']\nos.getenv('A')\nfrom os import environ\nprocess.environ()\n"

    assert sorted(environment_uses(source)) == [2, 3, 4]


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_module_is_named_for_what_it_is(path: Path) -> None:
    parts = set(path.relative_to(PACKAGE).with_suffix("").parts)

    assert path in FOR_PEOPLE_WHO_MOVE or not parts & FORBIDDEN_NAMES


def tracked_files() -> list[Path]:
    """The project's files. Without a repository (an sdist), everything but what tools leave behind."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listing.returncode == 0:
        return [PROJECT / name for name in listing.stdout.split("\0") if name]
    return [path for path in PROJECT.rglob("*") if path.is_file() and path.relative_to(PROJECT).parts[0][0] != "."]


def test_no_file_names_a_path_of_one_machine() -> None:
    found = []
    for path in tracked_files():
        if not path.is_file() or path.suffix in {".png", ".gz", ".npz"}:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if MACHINE_PATH.search(line):
                found.append(f"{path.relative_to(PROJECT)}:{number}: {line.strip()}")

    assert found == []


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("open('/" + "home/ada/x')", True),
        ("open('/" + "home/me/x')", False),
        ("see ../elsewhere/" + "work/x", False),
        ("/proc/self/fd", False),
    ],
)
def test_paths_of_one_machine_are_told_from_others(line: str, *, is_one: bool) -> None:
    assert bool(MACHINE_PATH.search(line)) is is_one


def test_the_version_has_one_source() -> None:
    version = json.loads((PROJECT / "package.json").read_text(encoding="utf-8"))["version"]
    build = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))

    assert accel_nb.__version__ == version
    assert build["project"]["dynamic"] == ["version"]
    assert build["tool"]["hatch"]["version"] == {"source": "nodejs"}


def test_the_oldest_versions_tested_are_the_lower_bounds() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = (PROJECT / "tests" / "oldest" / "constraints.txt").read_text(encoding="utf-8").splitlines()

    pins = dict(line.split("==") for line in pinned if line and not line.startswith("#"))

    bounds = {}
    for requirement in map(Requirement, project["dependencies"]):
        (bounds[requirement.name],) = [Version(part.version) for part in requirement.specifier if part.operator == ">="]
    assert {name: Version(pins[name]) for name in bounds} == bounds
