"""Logging that knows its rank, where code that moves from ``accelerate.logging`` looks for it."""

from __future__ import annotations

from .training.rank_logging import MultiProcessAdapter, get_logger

__all__ = ["MultiProcessAdapter", "get_logger"]
