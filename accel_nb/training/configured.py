"""The settings of an `Accelerator` that upstream's users read, and change, as attributes."""

from __future__ import annotations

from .arguments import Handlers
from .settings import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    ProfileKwargs,
    ProjectConfiguration,
)


class Configured:
    """Base of `Accelerator`: shorter names for what its configuration objects say."""

    dataloader_config: DataLoaderConfiguration
    project_configuration: ProjectConfiguration
    _handlers: Handlers

    @property
    def split_batches(self) -> bool:
        return self.dataloader_config.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        return self.dataloader_config.dispatch_batches

    @property
    def even_batches(self) -> bool:
        return self.dataloader_config.even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        """For the loaders prepared from now on."""
        self.dataloader_config.even_batches = value

    @property
    def use_seedable_sampler(self) -> bool:
        return self.dataloader_config.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        return self.dataloader_config.non_blocking

    @property
    def use_stateful_dataloader(self) -> bool:
        return self.dataloader_config.use_stateful_dataloader

    @property
    def project_dir(self) -> str | None:
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> str | None:
        return self.project_configuration.logging_dir

    @property
    def save_iteration(self) -> int:
        return self.project_configuration.iteration

    @property
    def ddp_handler(self) -> DistributedDataParallelKwargs | None:
        return self._handlers.ddp

    @property
    def scaler_handler(self) -> GradScalerKwargs | None:
        return self._handlers.scaler

    @property
    def init_handler(self) -> InitProcessGroupKwargs | None:
        return self._handlers.process_group

    @property
    def autocast_handler(self) -> AutocastKwargs | None:
        return self._handlers.autocast

    @property
    def profile_handler(self) -> ProfileKwargs | None:
        return self._handlers.profile
