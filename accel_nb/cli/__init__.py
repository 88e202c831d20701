"""The shell's face: ``accel-nb``."""
