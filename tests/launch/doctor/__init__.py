"""The look at a machine."""
