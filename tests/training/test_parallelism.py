from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import accel_nb
from accel_nb import Accelerator, ParallelismConfig, TrainingError
from accel_nb.protocol.environment import changed
from accel_nb.training.parallelism import (
    DeepSpeedSequenceParallelConfig,
    TorchContextParallelConfig,
    TorchTensorParallelConfig,
)


def test_sizes_are_1_unless_something_is_said() -> None:
    config = ParallelismConfig()

    assert config.sizes == {"dp_replicate": 1, "dp_shard": 1, "cp": 1, "sp": 1, "tp": 1}
    assert (config.total_size, config.active_mesh_dims) == (1, [])
    assert (config.tp_handler, config.cp_handler, config.sp_handler) == (None, None, None)


def test_dimensions_are_named_as_upstream_names_them() -> None:
    config = ParallelismConfig(dp_replicate_size=2, dp_shard_size=3, tp_size=5, cp_size=7)

    assert config.total_size == 210
    assert (config.data_parallel_size, config.non_data_parallel_size) == (6, 35)
    assert config.dp_dim_names == ["dp_replicate", "dp_shard"]
    assert config.non_dp_dim_names == ["tp", "cp"]
    assert config.active_mesh_dims == ["dp_replicate", "dp_shard", "tp", "cp"]
    assert config.dp_shard_cp_dim_names == ["dp_shard", "cp"]
    assert config.dp_cp_dim_names == ["dp_replicate", "dp_shard", "cp"]
    assert config.fsdp_dim_names == ["dp_replicate", "dp_shard_cp"]
    assert ParallelismConfig(dp_shard_size=2).fsdp_dim_names == ["dp_shard_cp"]


def test_what_is_not_given_comes_from_the_launch() -> None:
    variables = {"TP_SIZE": "2", "DP_SHARD_SIZE": "3", "CP_SIZE": "4", "CP_COMM_STRATEGY": "alltoall"}
    with changed({f"PARALLELISM_CONFIG_{name}": value for name, value in variables.items()}):
        config = ParallelismConfig(dp_shard_size=8)

    assert config.sizes == {"dp_replicate": 1, "dp_shard": 8, "cp": 4, "sp": 1, "tp": 2}
    assert config.cp_handler == TorchContextParallelConfig("alltoall")
    assert config.tp_handler == TorchTensorParallelConfig()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tp_size": 0}, "tp_size=0 is no number of ranks; give 1 or more."),
        ({"dp_shard_size": "2"}, "dp_shard_size='2' is no number of ranks; give 1 or more."),
        ({"cp_backend": "ring"}, "cp_backend='ring' is unknown; choose one of 'torch'."),
        ({"sp_backend": "ring"}, "sp_backend='ring' is unknown; choose one of 'deepspeed'."),
        ({"cp_size": 2, "sp_size": 3}, "cp_size=2 and sp_size=3 exclude each other: both share out sequences."),
        (
            {"dp_replicate_size": 2, "tp_size": 3},
            "dp_replicate_size=2 with tp_size=3 and cp_size=1 needs dp_shard_size",
        ),
        ({"tp_handler": "x"}, "tp_handler='x' does not fit; give a TorchTensorParallelConfig."),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ParallelismConfig(**arguments)


@pytest.mark.parametrize("text", ["many", "0"])
def test_a_variable_that_is_no_number_is_refused(text: str) -> None:
    with (
        changed({"PARALLELISM_CONFIG_TP_SIZE": text}),
        pytest.raises(
            ValueError, match=f"PARALLELISM_CONFIG_TP_SIZE='{text}' is no number of ranks; set it to 1 or more"
        ),
    ):
        ParallelismConfig()


def test_a_layout_is_shown_as_plain_values() -> None:
    plain = ParallelismConfig(cp_size=2).to_json()

    assert plain["cp_size"] == 2
    assert plain["cp_handler"] == {"cp_comm_strategy": "allgather"}
    assert "device_mesh" not in plain


def test_a_strategy_that_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match="cp_comm_strategy='ring' is unknown; choose one of 'allgather', 'alltoall'"):
        TorchContextParallelConfig("ring")


def test_tensor_parallelism_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"enable_async_tp=True.* which this version of accel_nb has not got"):
        TorchTensorParallelConfig(enable_async_tp=True)


def test_sequences_of_deepspeed_may_vary_in_length() -> None:
    config = DeepSpeedSequenceParallelConfig()

    assert (config.sp_seq_length, config.sp_seq_length_is_variable, config.sp_attn_implementation) == (None, True, None)


def test_sequences_of_deepspeed_that_do_not_vary_need_their_length() -> None:
    variables = {"SP_SEQ_LENGTH_IS_VARIABLE": "false", "SP_SEQ_LENGTH": "512"}
    with changed({f"PARALLELISM_CONFIG_{name}": value for name, value in variables.items()}):
        assert DeepSpeedSequenceParallelConfig().sp_seq_length == 512
    with pytest.raises(ValueError, match=r"sp_seq_length_is_variable=False needs sp_seq_length: .*_SP_SEQ_LENGTH"):
        DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=False)


def test_attention_that_deepspeed_cannot_share_out_is_refused() -> None:
    assert DeepSpeedSequenceParallelConfig(sp_attn_implementation="a/flash-attn2").sp_attn_implementation
    with pytest.raises(
        ValueError, match="sp_attn_implementation='eager' is unknown; choose one of 'flash_attention_2'"
    ):
        DeepSpeedSequenceParallelConfig(sp_attn_implementation="eager")


def test_a_mesh_needs_a_kind_of_device() -> None:
    with pytest.raises(ValueError, match=r"the mesh has not been built yet; get_device_mesh needs device_type="):
        ParallelismConfig(dp_shard_size=2).get_device_mesh()


def test_there_is_no_mesh_without_dimensions_or_where_deepspeed_makes_groups() -> None:
    assert ParallelismConfig().get_device_mesh("cpu") is None
    assert ParallelismConfig(sp_size=2).get_device_mesh("cpu") is None


def _mesh_of_shards() -> dict[str, Any]:
    accelerator = Accelerator(cpu=True)
    config = ParallelismConfig(dp_shard_size=2, tp_size=2)
    mesh = config.get_device_mesh("cpu")
    assert mesh is not None
    assert config.get_device_mesh() is mesh
    with pytest.raises(ValueError, match="device_type='cuda' was asked for, but the mesh has been built on 'cpu'"):
        config.get_device_mesh("cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.11 and later ask to keep flattened meshes by hand
        flattened = {name: mesh[name].mesh.tolist() for name in ("dp", "dp_cp", "dp_shard_cp")}
    return {
        "names": mesh.mesh_dim_names,
        "mesh": mesh.mesh.tolist(),
        "own": (accelerator.process_index, mesh.get_local_rank("dp_shard"), mesh.get_local_rank("tp")),
        **flattened,
    }


def test_neighbours_share_the_inner_dimension(run_ranks: Callable[..., list[Any]]) -> None:
    ranks = run_ranks(_mesh_of_shards, 4)

    assert ranks[0]["names"] == ("dp_shard", "tp")
    assert ranks[0]["mesh"] == [[0, 1], [2, 3]]
    assert [rank["own"] for rank in ranks] == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    assert [rank["dp"] for rank in ranks] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert ranks[1]["dp_cp"] == ranks[1]["dp_shard_cp"] == [1, 3]


def _trained_weight(config: ParallelismConfig | None) -> tuple[float, Any]:
    accelerator = Accelerator(cpu=True, parallelism_config=config)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator.backward(model(torch.tensor([[float(accelerator.process_index)]])).sum())
    optimizer.step()
    mesh = accelerator.torch_device_mesh
    layout = accelerator.parallelism_config
    facts = None if layout is None else (layout.sizes["dp_replicate"], accelerator.data_parallel_rank)
    return model.module.weight.item(), (facts, None if mesh is None else mesh.mesh.tolist())


@pytest.mark.parametrize("config", [ParallelismConfig(dp_replicate_size=2), ParallelismConfig()])
def test_d13_ranks_that_are_copies_train_one_model(
    run_ranks: Callable[..., list[Any]], config: ParallelismConfig
) -> None:
    ranks = run_ranks(_trained_weight, 2, config)

    assert [weight for weight, _ in ranks] == [weight for weight, _ in run_ranks(_trained_weight, 2, None)]
    assert [facts for _, facts in ranks] == [((2, 0), [0, 1]), ((2, 1), [0, 1])]
    assert config.device_mesh is None


def _refused(config: ParallelismConfig) -> str:
    with pytest.raises(ValueError) as raised:  # noqa: PT011  the caller looks at its text
        Accelerator(cpu=True, parallelism_config=config)
    return str(raised.value)


def test_d13_a_layout_for_another_number_of_ranks_is_refused(run_ranks: Callable[..., list[Any]]) -> None:
    expected = (
        "ParallelismConfig(dp_replicate_size=3) is for 3 ranks, but there are {}; the product of the sizes must be the "
        "number of ranks."
    )

    assert _refused(ParallelismConfig(dp_replicate_size=3)) == expected.format(1)
    assert run_ranks(_refused, 2, ParallelismConfig(dp_replicate_size=3)) == [expected.format(2)] * 2


@pytest.mark.parametrize(
    ("dimension", "meaning"),
    [
        ("dp_shard", "parameters that are shared out among ranks"),
        ("tp", "layers that are split over ranks"),
        ("cp", "sequences that are split over ranks"),
        ("sp", "sequences that are split over ranks"),
    ],
)
def test_d13_a_dimension_that_has_not_landed_is_refused_before_anything_starts(dimension: str, meaning: str) -> None:
    sizes: dict[str, Any] = {f"{dimension}_size": 2}
    message = (
        f"ParallelismConfig({dimension}_size=2) asks for {meaning}, which is not part of this version of accel_nb: "
        "every rank trains a whole copy of the model. Leave it out, or use dp_replicate_size=2."
    )

    with pytest.raises(TrainingError, match=re.escape(message)):
        Accelerator(cpu=True, parallelism_config=ParallelismConfig(**sizes))
    assert not accel_nb.is_initialized()


def test_d13_something_else_than_a_layout_is_refused() -> None:
    wrong: Any = "tp"

    with pytest.raises(TypeError, match="parallelism_config='tp' is no ParallelismConfig"):
        Accelerator(cpu=True, parallelism_config=wrong)


def test_d13_a_layout_of_the_launch_is_obeyed_when_the_launch_says_so() -> None:
    with changed({"PARALLELISM_CONFIG_TP_SIZE": "2"}):
        assert Accelerator(cpu=True).parallelism_config is None
        with (
            changed({"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}),
            pytest.raises(TrainingError, match=r"ParallelismConfig\(tp_size=2\) asks for layers that are split"),
        ):
            Accelerator(cpu=True)


def test_d13_a_handler_of_no_effect_is_said() -> None:
    config = ParallelismConfig(cp_handler=TorchContextParallelConfig())

    with pytest.warns(UserWarning, match=r"ParallelismConfig\(cp_handler=...\) has no effect, because cp_size is 1"):
        Accelerator(cpu=True, parallelism_config=config)


def test_a_single_process_has_the_first_place_in_a_layout() -> None:
    config = ParallelismConfig()
    accelerator = Accelerator(cpu=True, parallelism_config=config)

    assert accelerator.parallelism_config is config
    assert accelerator.torch_device_mesh is None
    assert accelerator.data_parallel_rank == accelerator.data_parallel_shard_rank == 0
    assert accelerator.tensor_parallel_rank == accelerator.context_parallel_rank == 0
    assert not accelerator.is_fsdp2
    assert not accelerator.is_composable_parallelism_enabled
    assert accelerator.should_save_model
    assert accelerator.fp8_backend == "NO"


def test_there_are_no_places_without_a_layout() -> None:
    accelerator = Accelerator(cpu=True)

    assert accelerator.torch_device_mesh is None
    with pytest.raises(TrainingError, match=r"made without parallelism_config=.*accelerator\.process_index"):
        _ = accelerator.data_parallel_rank


def test_there_is_no_pipeline() -> None:
    with pytest.raises(NotImplementedError, match="no pipeline dimension"):
        _ = Accelerator(cpu=True).pipeline_parallel_rank


def test_sequences_stay_whole_where_nothing_splits_them() -> None:
    ids = torch.arange(4)

    with Accelerator(cpu=True).maybe_context_parallel(buffers=[ids], buffer_seq_dims=[0], no_restore_buffers={ids}):
        assert ids.tolist() == [0, 1, 2, 3]
