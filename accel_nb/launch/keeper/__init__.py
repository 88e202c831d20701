"""The process that holds one run: its ranks, their output, its store, its end."""
