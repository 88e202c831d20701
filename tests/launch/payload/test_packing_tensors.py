from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from accel_nb.launch.payload.packing import pack_value, unpack_value
from accel_nb.protocol.payload import OUT_OF_BAND_BYTES
from tests.launch.payload.notebook_stand_in import Notebook

SMALL, LARGE = (3, 4), (OUT_OF_BAND_BYTES // 4, 2)


@pytest.fixture(scope="module", autouse=True)
def _optimizers_are_loaded() -> None:
    """torch sets environment variables of its own when the first optimizer is made and used: before a test begins."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    with Notebook() as notebook:
        notebook.run("import torch\nfrom torch import nn")
        yield notebook


def there_and_back(value: object) -> Any:  # noqa: ANN401  what came back
    with pack_value(value) as packed:
        return unpack_value(packed.fd)


TENSORS: dict[str, Callable[[tuple[int, int]], torch.Tensor]] = {
    "float32": torch.randn,
    "bfloat16": lambda shape: torch.randn(shape).bfloat16(),
    "bool": lambda shape: torch.randn(shape) > 0,
    "complex": lambda shape: torch.randn(shape, dtype=torch.complex64),
    "transposed": lambda shape: torch.randn(shape).t(),
    "with gaps": lambda shape: torch.randn(shape)[::2],
    "expanded": lambda shape: torch.randn(shape[0], 1).expand(shape),
    "requires grad": lambda shape: torch.randn(shape, requires_grad=True),
    "with a grad_fn": lambda shape: torch.randn(shape, requires_grad=True) * 2,
    "parameter": lambda shape: torch.nn.Parameter(torch.randn(shape)),
    "conjugate": lambda shape: torch.randn(shape, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("kind", TENSORS)
def test_p09_tensors_come_back_equal_and_writable(kind: str, shape: tuple[int, int]) -> None:
    tensor = TENSORS[kind](shape)

    value = there_and_back({"x": tensor})["x"]

    assert torch.equal(value, tensor)
    assert (value.dtype, value.stride(), type(value)) == (tensor.dtype, tensor.stride(), type(tensor))
    assert value.requires_grad == tensor.requires_grad
    value.detach()[0, 0] = 0


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch 2.11 alone warns of every sparse tensor
@pytest.mark.parametrize(
    "tensor", [torch.tensor(3.5), torch.zeros(0, 3), torch.eye(3).to_sparse(), torch.ones(3).to("meta")]
)
def test_unusual_tensors_come_back(tensor: torch.Tensor) -> None:
    value = there_and_back(tensor)

    assert value.shape == tensor.shape
    assert value.device == tensor.device
    assert tensor.is_meta or torch.equal(value.to_dense(), tensor.to_dense())


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["small", "large"])
def test_views_share_memory_after_the_journey(shape: tuple[int, int]) -> None:
    base = torch.zeros(shape)

    other, view = there_and_back([base, base[1:]])
    other[1] = 7.0

    assert (view[0] == 7.0).all()


def test_a_small_tensor_can_still_grow() -> None:
    assert there_and_back(torch.ones(4)).resize_(1000).numel() == 1000


def test_p10_a_model_comes_back_with_tied_weights_and_its_optimizer(notebook: Notebook) -> None:
    notebook.run("""
        def train():
            embedding, head = nn.Embedding(50, 400), nn.Linear(400, 50, bias=False)
            head.weight = embedding.weight
            model = nn.Sequential(embedding, head)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for _ in range(3):
                model(torch.tensor([1])).sum().backward()
                optimizer.step()
            return model, optimizer, model.state_dict(), optimizer.state[embedding.weight]["momentum_buffer"].sum()
    """)

    model, optimizer, state_dict, momentum = notebook.launch("train")

    weight = model[0].weight
    assert model[1].weight is weight
    assert optimizer.param_groups[0]["params"][0] is weight
    assert state_dict["0.weight"].data_ptr() == weight.data_ptr()
    assert optimizer.state[weight]["momentum_buffer"].sum() == momentum
    model(torch.tensor([1])).sum().backward()
    assert weight.grad is not None


def test_l03_objects_made_in_the_kernel_arrive_in_a_rank(notebook: Notebook) -> None:
    notebook.run("""
        model = nn.Linear(200, 200)
        tied = [model.weight, model]
        def train(scale):
            model.weight.data.mul_(scale)
            return tied[0] is model.weight, model
    """)
    weight = notebook["model"].weight.detach().clone()

    is_tied, trained = notebook.launch("train", 3.0)

    assert is_tied
    assert torch.equal(trained.weight, weight * 3)
    assert torch.equal(notebook["model"].weight, weight), "the kernel's model is not what a rank trains"


def test_p02_lambdas_inside_models_schedulers_datasets_and_loaders(notebook: Notebook) -> None:
    notebook.run("""
        from torch.utils.data import DataLoader, Dataset
        scale = 10
        class Squares(Dataset):
            def __init__(self, transform): self.transform = transform
            def __len__(self): return 8
            def __getitem__(self, index): return self.transform(index)
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(1, 1)
                self.activation = lambda x: x.relu()
            def forward(self, x): return self.activation(self.layer(x))
        def make():
            def collate(items): return torch.tensor(items).float()[:, None]
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
            loader = DataLoader(Squares(lambda x: x * x * scale), batch_size=4, num_workers=2, collate_fn=collate)
            return model, optimizer, scheduler, loader
        parts = make()
        def train():
            torch.set_num_threads(1)
            model, optimizer, scheduler, loader = parts
            for batch in loader:
                model(batch).sum().backward()
                optimizer.step()
                scheduler.step()
            return [batch.flatten().tolist() for batch in loader], scheduler.get_last_lr(), model
    """)

    batches, rates, model = notebook.launch("train")

    assert batches == [[0, 10, 40, 90], [160, 250, 360, 490]]
    assert rates == [0.25]
    assert type(model) is notebook["Net"]


def test_a_captured_tensor_serves_data_loader_workers(notebook: Notebook) -> None:
    notebook.run("""
        from torch.utils.data import DataLoader, TensorDataset
        dataset = TensorDataset(torch.arange(100_000))
        def train():
            torch.set_num_threads(1)
            whole = sum(batch.sum().item() for (batch,) in DataLoader(dataset, batch_size=5_000, num_workers=2))
            dataset.tensors[0].share_memory_()
            return whole, dataset.tensors[0].sum().item()
    """)

    assert notebook.launch("train") == (4999950000, 4999950000)


def test_packing_a_tensor_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    there_and_back([torch.ones(SMALL), torch.ones(LARGE), torch.nn.Linear(2, 2)])

    assert not recwarn.list
