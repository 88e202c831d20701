"""What is built by Node gets into wheels, and needs Node nowhere else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
BUILD = "import hatchling.build as b; print(b.build_{}(sys.argv[1]))"
PAGES = {"accel_nb/jupyter/static/run_view.js", "accel_nb/jupyter/static/run_view.css"}
EXTENSION = "share/jupyter/labextensions/accel-nb"

pytest.importorskip("hatchling", reason="needs hatchling")


@pytest.fixture(name="checkout")
def _checkout(tmp_path: Path) -> Path:
    """What git holds, as it lies here, without what was built."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=False, text=True
    ).stdout.split("\0")
    if listed == [""]:
        pytest.skip("this is no checkout")
    for name in listed:
        if name and (REPOSITORY / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


def build(folder: Path, kind: str, *, path: str) -> subprocess.CompletedProcess[str]:
    """What pip does with the project in `folder`, with only the programs of `path`."""
    code = f"import sys; {BUILD.format(kind)}"
    return subprocess.run(
        [sys.executable, "-c", code, str(folder / "dist")],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def files_of(folder: Path) -> set[str]:
    [wheel] = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


def extension_of(folder: Path) -> set[str]:
    """The files of the prebuilt extension, as JupyterLab will find them."""
    inside = f".data/data/{EXTENSION}/"
    return {name.split(inside)[1] for name in files_of(folder) if inside in name}


def test_a_checkout_without_node_is_refused_with_a_sentence(checkout: Path) -> None:
    built = build(checkout, "wheel", path="")

    assert built.returncode != 0
    assert "there is no npm on the path. Install Node 20.19 or newer" in built.stderr


def test_an_editable_install_needs_no_node(checkout: Path) -> None:
    pytest.importorskip("editables", reason="needs editables, which pip brings")

    assert build(checkout, "editable", path="").returncode == 0


def test_a_source_distribution_needs_no_node(checkout: Path) -> None:
    (checkout / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: accel-nb\nVersion: 0.1.0\n")
    for name in (*PAGES, "accel_nb/labextension/package.json"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text("built")

    built = build(checkout, "wheel", path="")

    assert built.returncode == 0, built.stderr
    assert files_of(checkout) >= PAGES
    assert extension_of(checkout) == {"package.json", "install.json"}


def test_a_source_distribution_holds_what_node_built(checkout: Path) -> None:
    # It is made of another one, as by those who check that it is complete.
    (checkout / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: accel-nb\nVersion: 0.1.0\n")
    built_by_node = {*PAGES, "accel_nb/labextension/package.json", "accel_nb/labextension/static/remoteEntry.js"}
    for name in built_by_node:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("built")

    built = build(checkout, "sdist", path="")

    assert built.returncode == 0, built.stderr
    [file] = (checkout / "dist").glob("*.tar.gz")
    with tarfile.open(file) as opened:
        names = {name.split("/", 1)[-1] for name in opened.getnames()}
    assert names >= built_by_node | {"install.json", "package-lock.json", "labextension/src/index.ts"}


def test_the_lock_file_names_no_registry() -> None:
    lock = json.loads((REPOSITORY / "package-lock.json").read_text())

    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node")
def test_a_wheel_of_a_clean_checkout_holds_what_node_built(checkout: Path) -> None:
    for name in ("accel_nb/jupyter/static/stale.js", "accel_nb/labextension/static/stale.js"):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).write_text("of another commit")

    built = build(checkout, "wheel", path=os.environ["PATH"])

    assert built.returncode == 0, built.stderr
    assert {name for name in files_of(checkout) if "/jupyter/static/" in name} == PAGES
    extension = extension_of(checkout)
    assert extension > {"package.json", "install.json", "schemas/accel-nb/panel.json"}
    assert "static/stale.js" not in extension
    wheel_works_without_node(checkout)


def wheel_works_without_node(checkout: Path) -> None:
    """In an environment of its own, whose JupyterLab is that of the tests."""
    environment = checkout / "environment"
    venv.create(environment, symlinks=True, with_pip=False)
    [wheel] = (checkout / "dist").glob("*.whl")
    only_python = {**os.environ, "PATH": str(environment / "bin"), "PYTHONPATH": os.pathsep.join(sys.path[1:])}
    # Whatever the environment of the tests has installed: it is on the path.
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(environment / "bin/python"),
        "install",
        "--ignore-installed",
    ]
    installed = subprocess.run(
        [*command, "--no-deps", "--no-index", wheel], env=only_python, capture_output=True, text=True, check=False
    )
    assert installed.returncode == 0, installed.stderr

    listed = subprocess.run(
        [environment / "bin/python", "-m", "jupyterlab.labextensions", "list"],
        env=only_python,
        capture_output=True,
        text=True,
        check=True,
    )

    assert re.search(r"accel-nb v[\d.]+\S* .*enabled.* .*OK", listed.stderr), listed.stderr
