"""Real runs on torch_xla's CPU runtime, in an environment of their own: ``tox -e xla``."""
