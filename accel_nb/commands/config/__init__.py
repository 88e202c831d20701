"""The place of ``accelerate.commands.config``."""
