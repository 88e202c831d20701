"""Which lines hold a GPU's memory, out of snapshots of the structure that torch documents."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import accel_nb
from accel_nb.launch.rank.memory_history import Frame, Snapshot, largest_allocations, live_bytes, take, users_line
from accel_nb.protocol.failure import LineAllocations

MIB = 1 << 20
TORCH = torch.nn.functional.__file__
OURS = accel_nb.__file__


def frames(*places: tuple[str, int]) -> list[Frame]:
    return [Frame(filename=file, line=line, name="f") for file, line in places]


IN_CELL = frames((TORCH, 2000), (OURS, 40), ("<Cell In[7]>", 12), ("<Cell In[3]>", 4))
IN_FILE = frames(("/somewhere/model.py", 30), ("<Cell In[7]>", 9))
SNAPSHOT: Snapshot = {
    "segments": [
        {
            "blocks": [
                {"size": 20 * MIB, "state": "active_allocated", "frames": IN_CELL},
                {"size": 300 * MIB, "state": "inactive", "frames": IN_CELL},
                {"size": 30 * MIB, "state": "active_allocated", "frames": IN_FILE},
            ]
        },
        {
            "blocks": [
                {"size": 15 * MIB, "state": "active_allocated", "frames": IN_CELL},
                {"size": 70 * MIB, "state": "active_awaiting_free", "frames": IN_FILE},
                {"size": 5 * MIB, "state": "active_allocated", "frames": []},
                {"size": 6 * MIB, "state": "active_allocated"},
                {"size": 1 * MIB, "state": "active_allocated", "frames": frames((TORCH, 1), (OURS, 2))},
            ]
        },
    ]
}


def test_live_allocations_are_summed_by_the_users_line() -> None:
    assert largest_allocations(SNAPSHOT) == (
        LineAllocations(location="Cell In[7], line 12", num_bytes=35 * MIB, count=2),
        LineAllocations(location="model.py, line 30", num_bytes=30 * MIB, count=1),
        LineAllocations(location="", num_bytes=12 * MIB, count=3),
    )
    assert live_bytes(SNAPSHOT) == 77 * MIB


def test_only_the_largest_are_told() -> None:
    blocks = [
        {"size": number * MIB, "state": "active_allocated", "frames": frames(("<Cell In[1]>", number))}
        for number in range(1, 30)
    ]
    crowded: Snapshot = {"segments": [{"blocks": blocks}]}  # type: ignore[typeddict-item]  # as it comes from torch

    largest = largest_allocations(crowded)

    assert [one.num_bytes // MIB for one in largest] == list(range(29, 19, -1))


def test_nothing_on_the_gpu_is_no_line() -> None:
    assert largest_allocations({"segments": []}) == ()
    assert live_bytes({}) == 0


def test_frames_that_nobody_wrote_are_passed_over() -> None:
    places = frames(("??", 0), ("/tmp/torchinductor_me/ab/cab.py", 70), (TORCH, 3), ("train.py", 8))

    assert users_line(places) == "train.py, line 8"


def test_a_real_snapshot_has_this_structure() -> None:
    """What torch documents, so that a change of its recorder is noticed on machines without a GPU."""
    documented = str(torch.cuda.memory._snapshot.__doc__).replace(" :", ":").replace("'", '"')  # 2.6 has other quotes

    for part in ('"active_allocated"', "frames: List[Frame]", "segments: List[Segment]", "blocks: List[Block]"):
        assert part in documented


def test_a_process_without_cuda_has_nothing_to_tell(tmp_path: Path) -> None:
    assert not torch.cuda.is_initialized()

    assert take(tmp_path / "snapshot") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: device-side assert triggered"), MemoryError("no room")])
def test_a_device_that_does_not_answer_any_more_hides_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    def snapshot() -> Snapshot:
        raise error

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", snapshot)

    taken = take(tmp_path / "snapshot")

    assert taken is not None
    assert taken.problem == f"the snapshot was not written: {type(error).__name__}: {error}"
