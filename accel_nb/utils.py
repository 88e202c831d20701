"""For people who move from Hugging Face Accelerate: the names of ``accelerate.utils`` and its modules, in one place.

Names are resolved on first use. Nothing is defined here.
"""

# ruff: noqa: PLC0414  an alias of the same name is what type checkers take for a re-export

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what `__getattr__` gives, for type checkers and editors
    from .cli.torchrun import prepare_multi_gpu_env as prepare_multi_gpu_env
    from .errors import DistributedOperationException as DistributedOperationException
    from .errors import NoExecutableBatchSize as NoExecutableBatchSize
    from .protocol.environment import get_int_from_env as get_int_from_env
    from .protocol.environment import parse_choice_from_env as parse_choice_from_env
    from .protocol.environment import parse_flag_from_env as parse_flag_from_env
    from .protocol.environment import str_to_bool as str_to_bool
    from .training.checkpoints.model_files import load_checkpoint_in_model as load_checkpoint_in_model
    from .training.checkpoints.names import MODEL_NAME as MODEL_NAME
    from .training.checkpoints.names import OPTIMIZER_NAME as OPTIMIZER_NAME
    from .training.checkpoints.names import RNG_STATE_NAME as RNG_STATE_NAME
    from .training.checkpoints.names import SAFE_MODEL_NAME as SAFE_MODEL_NAME
    from .training.checkpoints.names import SAFE_WEIGHTS_INDEX_NAME as SAFE_WEIGHTS_INDEX_NAME
    from .training.checkpoints.names import SAFE_WEIGHTS_NAME as SAFE_WEIGHTS_NAME
    from .training.checkpoints.names import SAFE_WEIGHTS_PATTERN_NAME as SAFE_WEIGHTS_PATTERN_NAME
    from .training.checkpoints.names import SAMPLER_NAME as SAMPLER_NAME
    from .training.checkpoints.names import SCALER_NAME as SCALER_NAME
    from .training.checkpoints.names import SCHEDULER_NAME as SCHEDULER_NAME
    from .training.checkpoints.names import WEIGHTS_INDEX_NAME as WEIGHTS_INDEX_NAME
    from .training.checkpoints.names import WEIGHTS_NAME as WEIGHTS_NAME
    from .training.checkpoints.names import WEIGHTS_PATTERN_NAME as WEIGHTS_PATTERN_NAME
    from .training.checkpoints.saving import clean_state_dict_for_safetensors as clean_state_dict_for_safetensors
    from .training.checkpoints.saving import load as load
    from .training.checkpoints.saving import load_state_dict as load_state_dict
    from .training.checkpoints.saving import save as save
    from .training.choices import TORCH_DYNAMO_MODES as TORCH_DYNAMO_MODES
    from .training.choices import BaseEnum as BaseEnum
    from .training.choices import ComputeEnvironment as ComputeEnvironment
    from .training.choices import CustomDtype as CustomDtype
    from .training.choices import DDPCommunicationHookType as DDPCommunicationHookType
    from .training.choices import DynamoBackend as DynamoBackend
    from .training.choices import EnumWithContains as EnumWithContains
    from .training.choices import LoggerType as LoggerType
    from .training.choices import PrecisionType as PrecisionType
    from .training.choices import RNGType as RNGType
    from .training.compat.patching import clear_environment as clear_environment
    from .training.compat.patching import convert_dict_to_env_variables as convert_dict_to_env_variables
    from .training.compat.patching import patch_environment as patch_environment
    from .training.compat.patching import purge_accelerate_environment as purge_accelerate_environment
    from .training.compat.plain_values import convert_bytes as convert_bytes
    from .training.compat.plain_values import get_pretty_name as get_pretty_name
    from .training.compat.plain_values import merge_dicts as merge_dicts
    from .training.compat.plain_values import recursive_getattr as recursive_getattr
    from .training.compat.progress_bar import tqdm as tqdm
    from .training.compat.surroundings import CPUInformation as CPUInformation
    from .training.compat.surroundings import are_libraries_initialized as are_libraries_initialized
    from .training.compat.surroundings import get_cpu_distributed_information as get_cpu_distributed_information
    from .training.compat.surroundings import get_current_device_type as get_current_device_type
    from .training.compat.surroundings import get_driver_version as get_driver_version
    from .training.compat.surroundings import get_free_port as get_free_port
    from .training.compat.surroundings import get_gpu_info as get_gpu_info
    from .training.compat.surroundings import is_port_in_use as is_port_in_use
    from .training.compat.versions import STR_OPERATION_TO_FUNC as STR_OPERATION_TO_FUNC
    from .training.compat.versions import check_os_kernel as check_os_kernel
    from .training.compat.versions import compare_versions as compare_versions
    from .training.compat.versions import is_torch_version as is_torch_version
    from .training.memory.finding import find_executable_batch_size as find_executable_batch_size
    from .training.memory.recognition import should_reduce_batch_size as should_reduce_batch_size
    from .training.memory.release import clear_device_cache as clear_device_cache
    from .training.memory.release import release_memory as release_memory
    from .training.models.compilation import compile_regions as compile_regions
    from .training.models.compilation import has_compiled_regions as has_compiled_regions
    from .training.models.compilation import has_repeated_blocks as has_repeated_blocks
    from .training.models.compilation import is_compiled_module as is_compiled_module
    from .training.models.compilation import is_repeated_blocks as is_repeated_blocks
    from .training.models.model_anatomy import dtype_byte_size as dtype_byte_size
    from .training.models.model_anatomy import get_module_children_bottom_up as get_module_children_bottom_up
    from .training.models.model_anatomy import get_module_class_from_name as get_module_class_from_name
    from .training.models.model_anatomy import is_peft_model as is_peft_model
    from .training.models.model_anatomy import model_has_dtensor as model_has_dtensor
    from .training.models.unwrapping import extract_model_from_parallel as extract_model_from_parallel
    from .training.operations.batches import ConvertOutputsToFp32 as ConvertOutputsToFp32
    from .training.operations.batches import concatenate as concatenate
    from .training.operations.batches import convert_outputs_to_fp32 as convert_outputs_to_fp32
    from .training.operations.batches import listify as listify
    from .training.operations.batches import pad_input_tensors as pad_input_tensors
    from .training.operations.batches import slice_tensors as slice_tensors
    from .training.operations.collectives import broadcast as broadcast
    from .training.operations.collectives import broadcast_object_list as broadcast_object_list
    from .training.operations.collectives import chained_operation as chained_operation
    from .training.operations.collectives import copy_tensor_to_devices as copy_tensor_to_devices
    from .training.operations.collectives import gather as gather
    from .training.operations.collectives import gather_object as gather_object
    from .training.operations.collectives import pad_across_processes as pad_across_processes
    from .training.operations.collectives import reduce as reduce
    from .training.operations.collectives import verify_operation as verify_operation
    from .training.operations.collectives import wait_for_everyone as wait_for_everyone
    from .training.operations.nested import convert_to_fp32 as convert_to_fp32
    from .training.operations.nested import honor_type as honor_type
    from .training.operations.nested import ignorant_find_batch_size as ignorant_find_batch_size
    from .training.operations.nested import is_namedtuple as is_namedtuple
    from .training.operations.nested import is_torch_tensor as is_torch_tensor
    from .training.operations.nested import recursively_apply as recursively_apply
    from .training.operations.nested import send_to_device as send_to_device
    from .training.operations.structure import TensorInformation as TensorInformation
    from .training.operations.structure import find_batch_size as find_batch_size
    from .training.operations.structure import find_device as find_device
    from .training.operations.structure import get_data_structure as get_data_structure
    from .training.operations.structure import get_shape as get_shape
    from .training.operations.structure import initialize_tensors as initialize_tensors
    from .training.operations.structure import is_tensor_information as is_tensor_information
    from .training.operations.transport import CannotPadNestedTensorWarning as CannotPadNestedTensorWarning
    from .training.parallelism import DeepSpeedSequenceParallelConfig as DeepSpeedSequenceParallelConfig
    from .training.parallelism import ParallelismConfig as ParallelismConfig
    from .training.parallelism import TorchContextParallelConfig as TorchContextParallelConfig
    from .training.parallelism import TorchTensorParallelConfig as TorchTensorParallelConfig
    from .training.parallelism import TorchTensorParallelPlugin as TorchTensorParallelPlugin
    from .training.ranks.distributed_type import CUDA_DISTRIBUTED_TYPES as CUDA_DISTRIBUTED_TYPES
    from .training.ranks.distributed_type import TORCH_DISTRIBUTED_OPERATION_TYPES as TORCH_DISTRIBUTED_OPERATION_TYPES
    from .training.ranks.distributed_type import DistributedType as DistributedType
    from .training.ranks.randomness import set_seed as set_seed
    from .training.ranks.randomness import synchronize_rng_state as synchronize_rng_state
    from .training.ranks.randomness import synchronize_rng_states as synchronize_rng_states
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
    from .training.steps.amp import get_grad_scaler as get_grad_scaler
    from .training.steps.amp import get_mixed_precision_context_manager as get_mixed_precision_context_manager
    from .training.steps.profiling import PROFILE_PATTERN_NAME as PROFILE_PATTERN_NAME

_NAMES = {
    "cli.torchrun": "prepare_multi_gpu_env",
    "errors": "DistributedOperationException NoExecutableBatchSize",
    "protocol.environment": "get_int_from_env parse_choice_from_env parse_flag_from_env str_to_bool",
    "training.steps.amp": "get_grad_scaler get_mixed_precision_context_manager",
    "training.operations.batches": (
        "ConvertOutputsToFp32 concatenate convert_outputs_to_fp32 listify pad_input_tensors slice_tensors"
    ),
    "training.checkpoints.model_files": "load_checkpoint_in_model",
    "training.checkpoints.names": (
        "MODEL_NAME OPTIMIZER_NAME RNG_STATE_NAME SAFE_MODEL_NAME SAFE_WEIGHTS_INDEX_NAME SAFE_WEIGHTS_NAME "
        "SAFE_WEIGHTS_PATTERN_NAME SAMPLER_NAME SCALER_NAME SCHEDULER_NAME WEIGHTS_INDEX_NAME WEIGHTS_NAME "
        "WEIGHTS_PATTERN_NAME"
    ),
    "training.choices": (
        "BaseEnum ComputeEnvironment CustomDtype DDPCommunicationHookType DynamoBackend EnumWithContains "
        "LoggerType PrecisionType RNGType TORCH_DYNAMO_MODES"
    ),
    "training.operations.collectives": (
        "broadcast broadcast_object_list chained_operation copy_tensor_to_devices gather gather_object "
        "pad_across_processes reduce verify_operation wait_for_everyone"
    ),
    "training.models.compilation": (
        "compile_regions has_compiled_regions has_repeated_blocks is_compiled_module is_repeated_blocks"
    ),
    "training.ranks.distributed_type": "CUDA_DISTRIBUTED_TYPES DistributedType TORCH_DISTRIBUTED_OPERATION_TYPES",
    "training.memory.finding": "find_executable_batch_size",
    "training.memory.recognition": "should_reduce_batch_size",
    "training.memory.release": "clear_device_cache release_memory",
    "training.models.model_anatomy": (
        "dtype_byte_size get_module_children_bottom_up get_module_class_from_name is_peft_model model_has_dtensor"
    ),
    "training.operations.nested": (
        "convert_to_fp32 honor_type ignorant_find_batch_size is_namedtuple is_torch_tensor recursively_apply "
        "send_to_device"
    ),
    "training.parallelism": (
        "DeepSpeedSequenceParallelConfig ParallelismConfig TorchContextParallelConfig TorchTensorParallelConfig "
        "TorchTensorParallelPlugin"
    ),
    "training.compat.patching": (
        "clear_environment convert_dict_to_env_variables patch_environment purge_accelerate_environment"
    ),
    "training.compat.plain_values": "convert_bytes get_pretty_name merge_dicts recursive_getattr",
    "training.steps.profiling": "PROFILE_PATTERN_NAME",
    "training.compat.progress_bar": "tqdm",
    "training.ranks.randomness": "set_seed synchronize_rng_state synchronize_rng_states",
    "training.checkpoints.saving": "clean_state_dict_for_safetensors load load_state_dict save",
    "training.settings": (
        "AutocastKwargs DataLoaderConfiguration DistributedDataParallelKwargs GradScalerKwargs "
        "GradientAccumulationPlugin InitProcessGroupKwargs KwargsHandler ProfileKwargs ProjectConfiguration "
        "TorchDynamoPlugin"
    ),
    "training.operations.structure": (
        "TensorInformation find_batch_size find_device get_data_structure get_shape initialize_tensors "
        "is_tensor_information"
    ),
    "training.compat.surroundings": (
        "CPUInformation are_libraries_initialized get_cpu_distributed_information get_current_device_type "
        "get_driver_version get_free_port get_gpu_info is_port_in_use"
    ),
    "training.operations.transport": "CannotPadNestedTensorWarning",
    "training.models.unwrapping": "extract_model_from_parallel",
    "training.compat.versions": "STR_OPERATION_TO_FUNC check_os_kernel compare_versions is_torch_version",
}
"""Module within accel_nb -> the public names that are defined there."""

_HOME = {name: f"accel_nb.{module}" for module, names in _NAMES.items() for name in names.split()}
"""Public name -> module that defines it."""

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    """Import the module that defines `name`. Raises AttributeError for a name that is not public."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'accel_nb.utils' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
