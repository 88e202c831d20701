"""MLflow."""

from __future__ import annotations

import json
import os
from types import ModuleType
from typing import Any

from ...protocol import environment
from .plain_values import is_number, plain, tell_left_out
from .tracker import OpenedTracker, on_main_process


class MLflowTracker(OpenedTracker):
    """A run of MLflow in the experiment `experiment_name`, which is made if there is none.

    ``MLFLOW_EXPERIMENT_NAME``, ``MLFLOW_RUN_ID``, ``MLFLOW_TAGS`` (JSON) and ``MLFLOW_NESTED_RUN`` take the place of
    the arguments. `logging_dir`: where artifacts of a new experiment go.
    """

    name = "mlflow"
    requires_logging_directory = False

    def __init__(
        self,
        experiment_name: str | None = None,
        logging_dir: str | os.PathLike[str] | None = None,
        run_id: str | None = None,
        tags: dict[str, Any] | str | None = None,
        nested_run: bool | None = False,
        run_name: str | None = None,
        description: str | None = None,
    ) -> None:
        super().__init__()
        variables = environment.mlflow_variables()
        tags = variables.get("TAGS", tags)
        nested = variables.get("NESTED_RUN")
        self.experiment_name = variables.get("EXPERIMENT_NAME", experiment_name)
        self.logging_dir = logging_dir
        self.run_id = variables.get("RUN_ID", run_id)
        self.tags: dict[str, Any] | None = json.loads(tags) if isinstance(tags, str) else tags
        self.nested_run = bool(nested_run) if nested is None else environment.is_true(nested)
        self.run_name = run_name
        self.description = description

    @property
    def active_run(self) -> Any:  # noqa: ANN401  MLflow's
        return self.tracker

    @on_main_process
    def start(self) -> None:
        mlflow = _library()
        found = mlflow.search_experiments(filter_string=f"name = '{self.experiment_name}'")
        if found:
            experiment_id = found[0].experiment_id
        else:
            experiment_id = mlflow.create_experiment(
                name=self.experiment_name, artifact_location=self.logging_dir, tags=self.tags
            )
        self._opened = mlflow.start_run(
            run_id=self.run_id, experiment_id=experiment_id, run_name=self.run_name, nested=self.nested_run,
            tags=self.tags, description=self.description,
        )  # fmt: skip

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Parameters of the run, in as many calls as MLflow's limit asks for. Values too long for it are left out."""
        mlflow = _library()
        limits = mlflow.utils.validation
        kept = {name: value for name, value in values.items() if len(str(value)) <= limits.MAX_PARAM_VAL_LENGTH}
        for name in values.keys() - kept.keys():
            tell_left_out(f"mlflow (at most {limits.MAX_PARAM_VAL_LENGTH} characters)", name, values[name])
        items = list(kept.items())
        for start in range(0, len(items), limits.MAX_PARAMS_TAGS_PER_BATCH):
            mlflow.log_params(dict(items[start : start + limits.MAX_PARAMS_TAGS_PER_BATCH]))

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        """Numbers; anything else is left out, which is said once per name."""
        metrics = {name: plain(value) for name, value in values.items()}
        for name in [name for name, value in metrics.items() if not is_number(value)]:
            tell_left_out(self.name, name, metrics.pop(name))
        _library().log_metrics(metrics, step=step, **kwargs)

    @on_main_process
    def log_figure(self, figure: Any, artifact_file: str, **save_kwargs: Any) -> None:  # noqa: ANN401
        _library().log_figure(figure=figure, artifact_file=artifact_file, **save_kwargs)

    @on_main_process
    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """All files of a folder."""
        _library().log_artifacts(local_dir=local_dir, artifact_path=artifact_path)

    @on_main_process
    def log_artifact(self, local_path: str, artifact_path: str | None = None) -> None:
        """One file."""
        _library().log_artifact(local_path=local_path, artifact_path=artifact_path)

    @on_main_process
    def finish(self) -> None:
        _library().end_run()


def _library() -> ModuleType:
    import mlflow

    library: ModuleType = mlflow
    return library
