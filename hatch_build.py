"""Build hook of hatchling: puts the pages' files, which Node makes, into wheels and source distributions. A wheel
installs the prebuilt extension where JupyterLab looks for such.

A source distribution holds them already, so that a wheel is made of it without Node. An editable install is left alone:
it needs no Node, and runs are shown as text until ``npm ci && npm run build``.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

EXTENSION = "accel_nb/labextension"
"""Built by Node: `npm run build`."""
INSTALLED = "share/jupyter/labextensions/accel-nb"


class NodeBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises RuntimeError in a checkout without Node."""
        if version == "editable":
            return
        root = Path(self.root)
        if not (root / "PKG-INFO").exists():
            _build_by_node(root)
        if self.target_name == "wheel":
            build_data["shared_data"] = {
                str(root / EXTENSION): INSTALLED,
                str(root / "install.json"): f"{INSTALLED}/install.json",
            }


def _build_by_node(root: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(
            "accel_nb's view of a run is built by Node, and there is no npm on the path. Install Node 20.19 or "
            "newer, or install a released wheel, which needs none."
        )
    # Always anew: what lies there may be of another commit.
    for command in (["ci"], ["run", "build"]):
        subprocess.run([npm, *command], cwd=root, check=True)
