"""Dry runs: one step on the CPU instead of a run, and what it tells about the run."""
