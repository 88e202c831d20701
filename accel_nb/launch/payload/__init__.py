"""Functions and values on their way between kernel and ranks: one pickle, one memory file."""
