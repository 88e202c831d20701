"""The configuration file by the names of ``accelerate.commands.config.config_args``."""

from __future__ import annotations

from ...launch.settings.cluster_config import BaseConfig, ClusterConfig, load_config_from_file

__all__ = ["BaseConfig", "ClusterConfig", "load_config_from_file"]
