"""Run the tests of the Jupyter face on several releases of ipykernel.

    python tests/run_on_kernels.py 6.31.0 7.4.0 [-- PYTEST_ARGUMENTS]

Each release is installed into a folder of its own that is put in front of the environment's, so that torch is there
once. Exits with 1 when the tests failed on any release.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parent / "jupyter"


def install(release: str, folder: Path) -> None:
    """Put ipykernel `release` alone into `folder`; what it needs is in the environment already."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, f"ipykernel=={release}"], check=True)


def run_tests(folder: Path, arguments: list[str]) -> int:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "not slow and not faults and not browser",
        str(TESTS),
        *arguments,
    ]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False).returncode


def main() -> int:
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    releases, pytest_arguments = words[:end], words[end + 1 :]
    if not releases:
        sys.exit(__doc__)
    outcomes = {}
    for release in releases:
        with tempfile.TemporaryDirectory() as folder:
            install(release, Path(folder))
            outcomes[release] = run_tests(Path(folder), pytest_arguments)
    for release, status in outcomes.items():
        print(f"ipykernel {release}: {'passed' if status == 0 else f'failed (pytest exit status {status})'}")
    return int(any(outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
