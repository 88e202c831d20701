"""accel_nb: train on every device you have, from a notebook cell.

Public names are resolved on first use, so that importing the package imports neither torch nor anything heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what `__getattr__` gives, for type checkers and editors
    from .errors import CheckpointError as CheckpointError
    from .errors import CheckpointNotFound as CheckpointNotFound
    from .errors import DistributedOperationException as DistributedOperationException
    from .errors import NoExecutableBatchSize as NoExecutableBatchSize
    from .errors import PayloadError as PayloadError
    from .errors import PlanError as PlanError
    from .errors import RunStopped as RunStopped
    from .errors import StartError as StartError
    from .errors import TrainingError as TrainingError
    from .jupyter.attaching import attach as attach
    from .jupyter.doctor import doctor as doctor
    from .jupyter.extension import load_ipython_extension as load_ipython_extension
    from .jupyter.extension import unload_ipython_extension as unload_ipython_extension
    from .jupyter.launcher import debug_launcher as debug_launcher
    from .jupyter.launcher import notebook_launcher as notebook_launcher
    from .launch.dry_run.result import DryRun as DryRun
    from .launch.result import RunResult as RunResult
    from .launch.run import Run as Run
    from .launch.run_failed import RunFailed as RunFailed
    from .launch.run_failed import RunInterrupted as RunInterrupted
    from .protocol.agreement import unchecked as unchecked
    from .protocol.diagnosis import Diagnosis as Diagnosis
    from .protocol.plan import Timeouts as Timeouts
    from .training.accelerator import Accelerator as Accelerator
    from .training.checkpoints.rotation import best_checkpoint as best_checkpoint
    from .training.checkpoints.rotation import latest_checkpoint as latest_checkpoint
    from .training.checkpoints.upstream_functions import load_accelerator_state as load_accelerator_state
    from .training.checkpoints.upstream_functions import load_custom_state as load_custom_state
    from .training.checkpoints.upstream_functions import save_accelerator_state as save_accelerator_state
    from .training.checkpoints.upstream_functions import save_custom_state as save_custom_state
    from .training.choices import BaseEnum as BaseEnum
    from .training.choices import ComputeEnvironment as ComputeEnvironment
    from .training.choices import CustomDtype as CustomDtype
    from .training.choices import DDPCommunicationHookType as DDPCommunicationHookType
    from .training.choices import DynamoBackend as DynamoBackend
    from .training.choices import LoggerType as LoggerType
    from .training.choices import PrecisionType as PrecisionType
    from .training.choices import RNGType as RNGType
    from .training.data.adapter import DataLoaderAdapter as DataLoaderAdapter
    from .training.data.batch_sampler import BatchSamplerShard as BatchSamplerShard
    from .training.data.batch_sampler import SkipBatchSampler as SkipBatchSampler
    from .training.data.dispatcher import DataLoaderDispatcher as DataLoaderDispatcher
    from .training.data.iterable import IterableDatasetShard as IterableDatasetShard
    from .training.data.loader import DataLoaderShard as DataLoaderShard
    from .training.data.order import SeedableRandomSampler as SeedableRandomSampler
    from .training.data.prepared import DataLoaderStateMixin as DataLoaderStateMixin
    from .training.data.preparing import get_sampler as get_sampler
    from .training.data.preparing import mark_as_sharded as mark_as_sharded
    from .training.data.preparing import prepare_data_loader as prepare_data_loader
    from .training.data.skipping import SkipDataLoader as SkipDataLoader
    from .training.data.skipping import skip_first_batches as skip_first_batches
    from .training.memory.finding import find_executable_batch_size as find_executable_batch_size
    from .training.memory.recognition import should_reduce_batch_size as should_reduce_batch_size
    from .training.memory.release import clear_device_cache as clear_device_cache
    from .training.memory.release import release_memory as release_memory
    from .training.metrics import MetricMean as MetricMean
    from .training.operations.collectives import broadcast as broadcast
    from .training.operations.collectives import broadcast_object_list as broadcast_object_list
    from .training.operations.collectives import gather as gather
    from .training.operations.collectives import gather_object as gather_object
    from .training.operations.collectives import pad_across_processes as pad_across_processes
    from .training.operations.collectives import reduce as reduce
    from .training.operations.collectives import wait_for_everyone as wait_for_everyone
    from .training.operations.nested import convert_to_fp32 as convert_to_fp32
    from .training.operations.nested import send_to_device as send_to_device
    from .training.operations.structure import find_batch_size as find_batch_size
    from .training.parallelism import ParallelismConfig as ParallelismConfig
    from .training.rank_logging import MultiProcessAdapter as MultiProcessAdapter
    from .training.rank_logging import get_logger as get_logger
    from .training.ranks.distributed_type import DistributedType as DistributedType
    from .training.ranks.randomness import set_seed as set_seed
    from .training.ranks.randomness import synchronize_rng_states as synchronize_rng_states
    from .training.ranks.state import AcceleratorState as AcceleratorState
    from .training.ranks.state import GradientState as GradientState
    from .training.ranks.state import PartialState as PartialState
    from .training.ranks.state import is_initialized as is_initialized
    from .training.ranks.state import reset_state as reset_state
    from .training.settings import AutocastKwargs as AutocastKwargs
    from .training.settings import DataLoaderConfiguration as DataLoaderConfiguration
    from .training.settings import DistributedDataParallelKwargs as DistributedDataParallelKwargs
    from .training.settings import GradientAccumulationPlugin as GradientAccumulationPlugin
    from .training.settings import GradScalerKwargs as GradScalerKwargs
    from .training.settings import InitProcessGroupKwargs as InitProcessGroupKwargs
    from .training.settings import KwargsHandler as KwargsHandler
    from .training.settings import ProfileKwargs as ProfileKwargs
    from .training.settings import ProjectConfiguration as ProjectConfiguration
    from .training.settings import TorchDynamoPlugin as TorchDynamoPlugin
    from .training.steps.local_sgd import LocalSGD as LocalSGD
    from .training.steps.optimizer import AcceleratedOptimizer as AcceleratedOptimizer
    from .training.steps.scheduler import AcceleratedScheduler as AcceleratedScheduler
    from .training.tracking.aim import AimTracker as AimTracker
    from .training.tracking.clearml import ClearMLTracker as ClearMLTracker
    from .training.tracking.comet import CometMLTracker as CometMLTracker
    from .training.tracking.dvclive import DVCLiveTracker as DVCLiveTracker
    from .training.tracking.files import JsonlTracker as JsonlTracker
    from .training.tracking.files import TensorBoardTracker as TensorBoardTracker
    from .training.tracking.mlflow import MLflowTracker as MLflowTracker
    from .training.tracking.notebook import NotebookTracker as NotebookTracker
    from .training.tracking.registry import LOGGER_TYPE_TO_CLASS as LOGGER_TYPE_TO_CLASS
    from .training.tracking.registry import filter_trackers as filter_trackers
    from .training.tracking.registry import get_available_trackers as get_available_trackers
    from .training.tracking.registry import register_tracker_class as register_tracker_class
    from .training.tracking.run_services import SwanLabTracker as SwanLabTracker
    from .training.tracking.run_services import TrackioTracker as TrackioTracker
    from .training.tracking.run_services import WandBTracker as WandBTracker
    from .training.tracking.tracker import GeneralTracker as GeneralTracker
    from .training.tracking.tracker import on_main_process as on_main_process

from .protocol.version import __version__

_HOME = {
    "notebook_launcher": "accel_nb.jupyter.launcher",
    "attach": "accel_nb.jupyter.attaching",
    "debug_launcher": "accel_nb.jupyter.launcher",
    "doctor": "accel_nb.jupyter.doctor",
    "Diagnosis": "accel_nb.protocol.diagnosis",
    "DryRun": "accel_nb.launch.dry_run.result",
    "Run": "accel_nb.launch.run",
    "RunFailed": "accel_nb.launch.run_failed",
    "RunInterrupted": "accel_nb.launch.run_failed",
    "RunResult": "accel_nb.launch.result",
    "RunStopped": "accel_nb.errors",
    "PayloadError": "accel_nb.errors",
    "PlanError": "accel_nb.errors",
    "StartError": "accel_nb.errors",
    "Timeouts": "accel_nb.protocol.plan",
    "unchecked": "accel_nb.protocol.agreement",
    "load_ipython_extension": "accel_nb.jupyter.extension",
    "unload_ipython_extension": "accel_nb.jupyter.extension",
    "Accelerator": "accel_nb.training.accelerator",
    "AcceleratorState": "accel_nb.training.ranks.state",
    "GradientState": "accel_nb.training.ranks.state",
    "PartialState": "accel_nb.training.ranks.state",
    "is_initialized": "accel_nb.training.ranks.state",
    "reset_state": "accel_nb.training.ranks.state",
    "DistributedType": "accel_nb.training.ranks.distributed_type",
    "DataLoaderShard": "accel_nb.training.data.loader",
    "DataLoaderDispatcher": "accel_nb.training.data.dispatcher",
    "IterableDatasetShard": "accel_nb.training.data.iterable",
    "BatchSamplerShard": "accel_nb.training.data.batch_sampler",
    "SkipBatchSampler": "accel_nb.training.data.batch_sampler",
    "SeedableRandomSampler": "accel_nb.training.data.order",
    "DataLoaderAdapter": "accel_nb.training.data.adapter",
    "DataLoaderStateMixin": "accel_nb.training.data.prepared",
    "MetricMean": "accel_nb.training.metrics",
    "SkipDataLoader": "accel_nb.training.data.skipping",
    "skip_first_batches": "accel_nb.training.data.skipping",
    "prepare_data_loader": "accel_nb.training.data.preparing",
    "get_sampler": "accel_nb.training.data.preparing",
    "mark_as_sharded": "accel_nb.training.data.preparing",
    "AcceleratedOptimizer": "accel_nb.training.steps.optimizer",
    "AcceleratedScheduler": "accel_nb.training.steps.scheduler",
    "broadcast": "accel_nb.training.operations.collectives",
    "broadcast_object_list": "accel_nb.training.operations.collectives",
    "gather": "accel_nb.training.operations.collectives",
    "gather_object": "accel_nb.training.operations.collectives",
    "pad_across_processes": "accel_nb.training.operations.collectives",
    "reduce": "accel_nb.training.operations.collectives",
    "wait_for_everyone": "accel_nb.training.operations.collectives",
    "ParallelismConfig": "accel_nb.training.parallelism",
    "set_seed": "accel_nb.training.ranks.randomness",
    "synchronize_rng_states": "accel_nb.training.ranks.randomness",
    "convert_to_fp32": "accel_nb.training.operations.nested",
    "find_batch_size": "accel_nb.training.operations.structure",
    "send_to_device": "accel_nb.training.operations.nested",
    "LocalSGD": "accel_nb.training.steps.local_sgd",
    "clear_device_cache": "accel_nb.training.memory.release",
    "find_executable_batch_size": "accel_nb.training.memory.finding",
    "release_memory": "accel_nb.training.memory.release",
    "should_reduce_batch_size": "accel_nb.training.memory.recognition",
    "DistributedOperationException": "accel_nb.errors",
    "NoExecutableBatchSize": "accel_nb.errors",
    "MultiProcessAdapter": "accel_nb.training.rank_logging",
    "get_logger": "accel_nb.training.rank_logging",
    "AimTracker": "accel_nb.training.tracking.aim",
    "ClearMLTracker": "accel_nb.training.tracking.clearml",
    "CometMLTracker": "accel_nb.training.tracking.comet",
    "DVCLiveTracker": "accel_nb.training.tracking.dvclive",
    "JsonlTracker": "accel_nb.training.tracking.files",
    "TensorBoardTracker": "accel_nb.training.tracking.files",
    "MLflowTracker": "accel_nb.training.tracking.mlflow",
    "NotebookTracker": "accel_nb.training.tracking.notebook",
    "LOGGER_TYPE_TO_CLASS": "accel_nb.training.tracking.registry",
    "filter_trackers": "accel_nb.training.tracking.registry",
    "get_available_trackers": "accel_nb.training.tracking.registry",
    "register_tracker_class": "accel_nb.training.tracking.registry",
    "SwanLabTracker": "accel_nb.training.tracking.run_services",
    "TrackioTracker": "accel_nb.training.tracking.run_services",
    "WandBTracker": "accel_nb.training.tracking.run_services",
    "GeneralTracker": "accel_nb.training.tracking.tracker",
    "on_main_process": "accel_nb.training.tracking.tracker",
    "TrainingError": "accel_nb.errors",
    "BaseEnum": "accel_nb.training.choices",
    "ComputeEnvironment": "accel_nb.training.choices",
    "CustomDtype": "accel_nb.training.choices",
    "DDPCommunicationHookType": "accel_nb.training.choices",
    "DynamoBackend": "accel_nb.training.choices",
    "LoggerType": "accel_nb.training.choices",
    "PrecisionType": "accel_nb.training.choices",
    "RNGType": "accel_nb.training.choices",
    "AutocastKwargs": "accel_nb.training.settings",
    "DataLoaderConfiguration": "accel_nb.training.settings",
    "DistributedDataParallelKwargs": "accel_nb.training.settings",
    "GradScalerKwargs": "accel_nb.training.settings",
    "GradientAccumulationPlugin": "accel_nb.training.settings",
    "InitProcessGroupKwargs": "accel_nb.training.settings",
    "KwargsHandler": "accel_nb.training.settings",
    "ProfileKwargs": "accel_nb.training.settings",
    "ProjectConfiguration": "accel_nb.training.settings",
    "TorchDynamoPlugin": "accel_nb.training.settings",
    "CheckpointError": "accel_nb.errors",
    "CheckpointNotFound": "accel_nb.errors",
    "best_checkpoint": "accel_nb.training.checkpoints.rotation",
    "latest_checkpoint": "accel_nb.training.checkpoints.rotation",
    "load_accelerator_state": "accel_nb.training.checkpoints.upstream_functions",
    "load_custom_state": "accel_nb.training.checkpoints.upstream_functions",
    "save_accelerator_state": "accel_nb.training.checkpoints.upstream_functions",
    "save_custom_state": "accel_nb.training.checkpoints.upstream_functions",
}
"""Public name -> module that defines it."""

__all__ = ["__version__", *_HOME]  # noqa: PLE0604  its keys are strings


def __getattr__(name: str) -> object:
    """Import the module that defines `name`. Raises AttributeError for a name that is not public."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'accel_nb' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
