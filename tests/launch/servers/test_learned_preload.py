"""The next server holds what ranks imported from site-packages, and nothing that would poison it."""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path

import pytest

PACKAGES = {
    "heavy_one": "VALUE = 3",
    "starts_a_thread": """
        import os, threading
        thread = threading.Thread(target=threading.Event().wait, daemon="RANK" in os.environ)
        thread.start()
    """,
    "starts_a_process": """
        import subprocess
        process = subprocess.Popen(["sleep", "100"])
    """,
    "works_in_ranks_only": """
        import os
        if "RANK" not in os.environ:
            raise ImportError("not here")
    """,
    "ends_the_process": """
        import os, sys
        if "RANK" not in os.environ:
            sys.exit(3)
    """,
}

SCRIPT = """
import json, sys, time
from accel_nb import notebook_launcher
from accel_nb.launch.servers.preload import PRELOAD

NAMES = {names!r}

def heavy():
    import sys
    there = [name for name in NAMES if name in sys.modules]
    import heavy_one, starts_a_thread, starts_a_process, works_in_ranks_only, ends_the_process
    starts_a_process.process.kill()
    return there, heavy_one.VALUE

for number in range(8):
    (there, value), _ = notebook_launcher(heavy, num_processes=2, device="cpu")
    assert value == 3
    print("HELD", there)
    if number and there and set(PRELOAD.struck) == {{"starts_a_thread", "starts_a_process"}}:
        break
    time.sleep(0.3)
print("STRUCK", json.dumps(PRELOAD.struck))
"""


@pytest.fixture
def environment_of_its_own(tmp_path: Path) -> Path:
    """The interpreter of a virtual environment with `PACKAGES` in site-packages and the session's packages beside."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    repository = Path(__file__).parents[3]
    (site / "session.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n{repository}\n"
    )
    for name, source in PACKAGES.items():
        (site / f"{name}.py").write_text(textwrap.dedent(source))
    return tmp_path / "venv" / "bin" / "python"


def test_the_next_server_holds_what_ranks_imported_but_nothing_that_would_poison_it(
    environment_of_its_own: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(names=list(PACKAGES)))

    done = subprocess.run(
        [str(environment_of_its_own), str(script)], capture_output=True, text=True, timeout=110, check=False
    )

    lines = done.stdout.splitlines()
    held = [ast.literal_eval(line.removeprefix("HELD ")) for line in lines if line.startswith("HELD ")]
    assert held, done.stderr
    assert held[0] == []
    assert held[-1] == ["heavy_one"], done.stdout + done.stderr
    (struck,) = [ast.literal_eval(line.removeprefix("STRUCK ")) for line in lines if line.startswith("STRUCK ")]
    assert struck["starts_a_thread"].startswith("importing it starts threads (")
    assert struck["starts_a_process"] == "importing it starts a process"


def test_modules_of_the_users_own_are_never_held(tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text("VALUE = 1\n")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from accel_nb import notebook_launcher

            def f():
                import sys
                before = "my_module" in sys.modules
                import my_module
                return before

            for _ in range(3):
                assert list(notebook_launcher(f, num_processes=2, device="cpu")) == [False, False]
            print("good")
            """
        )
    )

    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)

    assert done.stdout.splitlines()[-1:] == ["good"], done.stdout + done.stderr
