"""What a dataset raises in a DataLoader worker of a rank, shown with the dataset's own line."""

from __future__ import annotations

import pytest

from accel_nb.launch.failures import describe, headline
from tests.notebook_kernel import NotebookKernel

pytestmark = pytest.mark.faults

CELL = """
import torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            raise ValueError(f"bad sample {index}")
        return torch.ones(2)

def train(prepared, context):
    from accel_nb import Accelerator
    loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1, multiprocessing_context=context)
    if prepared:
        loader = Accelerator().prepare(loader)
    for batch in loader:
        pass
"""
MESSAGE = (
    "Caught ValueError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):\n"
    '  File "/venv/lib/python3.12/site-packages/torch/utils/data/_utils/fetch.py", line 54, in fetch\n'
    '  File "<Cell In[4]>", line 9, in __getitem__\n    raise ValueError("bad")\nValueError: bad\n'
)


@pytest.mark.parametrize(("prepared", "context"), [(True, "fork"), (True, "forkserver"), (False, "fork")])
def test_e11_a_workers_error_is_shown_with_the_datasets_own_line(
    kernel: NotebookKernel, prepared: bool, context: str
) -> None:
    kernel.ok("from accel_nb import notebook_launcher")
    kernel.ok(CELL)

    failed = kernel.run(f"notebook_launcher(train, args=({prepared}, {context!r}), num_processes=2, device='cpu')")

    assert failed.ename == "RunFailed"
    assert "(cpu) failed at Cell In[2], line 9." in failed.evalue
    assert 'Cell In[2], line 9, in __getitem__\n    raise ValueError(f"bad sample {index}")' in failed.evalue
    assert "Cell In[2], line 17, in train\n    for batch in loader:" in failed.evalue
    assert failed.evalue.splitlines()[-1] == "ValueError: bad sample 5"
    assert "failed: ValueError: bad sample 5 (in DataLoader worker process 0)" in failed.stdout


def test_e11_a_class_of_a_cell_that_no_worker_can_load_is_explained(kernel: NotebookKernel) -> None:
    kernel.ok("from accel_nb import notebook_launcher")
    kernel.ok(CELL)

    failed = kernel.run("notebook_launcher(train, args=(False, 'forkserver'), num_processes=2, device='cpu')")

    assert "exited unexpectedly" in failed.evalue
    assert "could not load the dataset, as one typed in a notebook" in failed.evalue
    assert "AttributeError: Can't get attribute 'Data'" in failed.stdout


def test_e11_a_workers_error_is_one_line_and_has_its_own_place() -> None:
    failure = describe(ValueError(MESSAGE), rank=0)

    assert failure.location == "Cell In[4], line 9"
    assert headline(failure) == "ValueError: bad (in DataLoader worker process 3)"


def test_e11_other_messages_that_quote_frames_keep_their_place() -> None:
    failure = describe(ValueError(f"somebody else said: {MESSAGE}"), rank=0)

    assert failure.location == ""
    assert headline(failure) == "ValueError: somebody else said: Caught ValueError in DataLoader worker process 3."
