"""Aim."""

from __future__ import annotations

import os
from typing import Any

from .plain_values import plain
from .tracker import OpenedTracker, on_main_process


class AimTracker(OpenedTracker):
    """A run of Aim, in the repository at `logging_dir`. `kwargs` are those of ``aim.Run``."""

    name = "aim"
    requires_logging_directory = True

    def __init__(
        self,
        run_name: str,
        logging_dir: str | os.PathLike[str] | None = ".",
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__()
        self.run_name = run_name
        self.aim_repo_path = logging_dir
        self.init_kwargs = kwargs

    @property
    def writer(self) -> Any:  # noqa: ANN401  Aim's
        return self.tracker

    @on_main_process
    def start(self) -> None:
        from aim import Run

        # A caller that knows Aim may name the repository as Aim does.
        self._opened = Run(**{"repo": self.aim_repo_path, **self.init_kwargs})
        self._opened.name = self.run_name

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.writer["hparams"] = values

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        for name, value in values.items():
            self.writer.track(plain(value), name=name, step=step, **kwargs)

    @on_main_process
    def log_images(
        self, values: dict[str, Any], step: int | None = None, kwargs: dict[str, dict[str, Any]] | None = None
    ) -> None:
        """Images, or pairs of image and caption. `kwargs`: "aim_image" for ``aim.Image``, "track" for ``Run.track``."""
        import aim

        options = kwargs or {}
        for name, value in values.items():
            image, caption = value if isinstance(value, tuple) else (value, "")
            drawn = aim.Image(image, caption=caption, **options.get("aim_image", {}))
            self.writer.track(drawn, name=name, step=step, **options.get("track", {}))

    @on_main_process
    def finish(self) -> None:
        self.writer.close()
