"""Build hook of hatchling: puts the pages' files, which Node makes, into wheels and source distributions.

A source distribution holds them already, so that a wheel is made of it without Node. An editable install is left alone:
it needs no Node, and runs are shown as text until ``npm ci && npm run build``. Installed after that it has the panel.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NodeBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  hatchling's interface
        """Raises RuntimeError in a checkout without Node."""
        root = Path(self.root)
        if version == "editable" or (root / "PKG-INFO").exists():
            return
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError(
                "accel_nb's view of a run is built by Node, and there is no npm on the path. Install Node 20.19 or "
                "newer, or install a released wheel, which needs none."
            )
        # Always anew: what lies there may be of another commit.
        for command in (["ci"], ["run", "build"]):
            subprocess.run([npm, *command], cwd=root, check=True)
