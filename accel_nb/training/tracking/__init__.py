"""Experiment trackers: where `Accelerator.log` sends its values."""
