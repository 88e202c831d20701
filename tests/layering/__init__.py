"""The rules of the house, read off the source."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "accel_nb"
MODULES = sorted(PACKAGE.rglob("*.py"))
