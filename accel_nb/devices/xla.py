"""TPUs, through torch_xla; and the CPU runtime of torch_xla, with which its users try code out where no TPU is.

    kernel: PCI ids, device files, PJRT_DEVICE --> probe, refusals       (never imports torch_xla, which starts threads)
    rank, a fresh interpreter: bind --> torch_xla's runtime, one process per chip --> torch.device("xla:0")

Between ranks, gradients are averaged by XLA on the devices. Everything else travels by gloo through the host: shapes
may vary there, while each new shape of an XLA operation costs a compilation.

Which numbers of processes the runtime takes is PJRT's rule (torch_xla 2.9, ``torch_xla._internal.pjrt.spawn``): one per
chip of the machine, or one. TPU v2, v3 and 7x have two cores per chip, which PJRT serves by threads of one process.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TrainingError
from ..protocol import environment
from ..protocol.hardware import DeviceInfo
from ..protocol.plan import StartMethod
from .base import DeviceBase

if TYPE_CHECKING:
    import torch

_GOOGLE_VENDOR = "0x1ae0"
_GENERATIONS = {
    "0x0027": "TPU v2 or v3",
    "0x005e": "TPU v4",
    "0x0062": "TPU v5p",
    "0x0063": "TPU v5e",
    "0x006f": "TPU v6e",
    "0x0076": "TPU 7x",
}
"""PCI id -> generation: ``jax/_src/hardware_utils.py``, ``torch_xla/_internal/tpu.py``. Google's network card, present
in every virtual machine of its cloud, shares the vendor id."""
_TWO_CORES = ("TPU v2 or v3", "TPU 7x")
WATCHED_STEPS = 20
"""The first so many may compile: shapes of a last batch, of an evaluation. Then stretches of so many are looked at."""
MANY_COMPILATIONS = 10
_CPU_RUNTIME = "XLA's CPU runtime (PJRT_DEVICE=CPU)"


class XlaDevice(DeviceBase):
    kind = "tpu"
    torch_type = "xla"
    process_group = "gloo"
    distributed_type = "XLA"
    precisions = frozenset({"no", "bf16"})
    start_methods: tuple[StartMethod, ...] = ("spawn",)
    keeps_parameters = False
    counted_by_torch = False
    out_of_memory_texts = (
        "RESOURCE_EXHAUSTED",
    )  # XLA's status code: "RESOURCE_EXHAUSTED: Out of memory allocating ..."

    def __init__(self, root: Path = Path("/"), installed: Callable[[str], str] = version) -> None:
        """`root` is where ``dev`` and ``sys`` lie; `installed` gives a package's version or PackageNotFoundError."""
        self._root, self._installed = root, installed

    @property
    def preference(self) -> int:
        """The CPU runtime is for those who ask for it: importing torch_xla sets PJRT_DEVICE=CPU on any machine."""
        return -1 if _runs_on_cpu() else 90

    def probe(self) -> tuple[DeviceInfo, ...]:
        if self.unusable_because():
            return ()
        if _runs_on_cpu():
            return (DeviceInfo(index=0, name=_CPU_RUNTIME),)
        return tuple(DeviceInfo(index=index, name=name) for index, name in enumerate(tpu_chips(self._root)))

    def unusable_because(self) -> str:
        on_cpu = _runs_on_cpu()
        evidence = "PJRT_DEVICE=CPU, for XLA's CPU runtime" if on_cpu else tpu_evidence(self._root)
        if not evidence:
            return ""
        if not on_cpu and not tpu_chips(self._root):
            return (
                f"{evidence} says that a TPU is here, but this process sees no chip (/dev/accel*, or PCI); start the "
                "container with access to it, or unset the variable."
            )
        return self._library_missing(evidence)

    def _library_missing(self, evidence: str) -> str:
        try:
            xla, torch = self._installed("torch_xla"), self._installed("torch")
        except PackageNotFoundError:
            return f"{evidence} was found, but torch_xla is not installed: pip install 'accel-nb[tpu]'."
        if _release(xla) != _release(torch):
            return (
                f"torch_xla {xla} works with torch {_release(xla)} only, and torch {torch} is installed: install the "
                f"two in the same release, such as torch=={_release(xla)}.*."
            )
        return ""

    def refused_choice(self, chosen: Sequence[DeviceInfo], visible: Sequence[DeviceInfo]) -> str:
        return refused_choice([one.index for one in chosen], [one.index for one in visible], visible[0].name)

    def env_for(self, chosen: Sequence[DeviceInfo]) -> dict[str, str]:
        """What the runtime must know before it starts; which chip is whose, `bind` tells it."""
        if not chosen:
            return {}
        return {"PJRT_DEVICE": "CPU" if chosen[0].name == _CPU_RUNTIME else "TPU"}

    def is_open(self) -> bool:
        library = sys.modules.get("torch_xla")
        # The one way to ask without starting the runtime (torch_xla 2.9).
        return library is not None and bool(library._XLAC._xla_runtime_is_initialized())  # noqa: SLF001

    def bind(self, local_rank: int | None, num_local_ranks: int) -> torch.device:
        import torch_xla
        from torch_xla import runtime
        from torch_xla._internal import pjrt

        # What torch_xla's own "xla://" does under torchrun (torch_xla/_internal/rendezvous.py, 2.9).
        if local_rank is not None and num_local_ranks > 1:
            pjrt.initialize_multiprocess(local_rank, num_local_ranks)
            if runtime.world_size() != num_local_ranks:
                raise TrainingError(
                    f"XLA's runtime joins {runtime.world_size()} devices, not those of {num_local_ranks} ranks: each "
                    "rank would train a model of its own. Use one rank (XLA's CPU runtime takes no more), or as many "
                    "as this machine has TPU chips."
                )
        elif local_rank is not None and not runtime.is_spmd():
            pjrt.initialize_singleprocess()
        device: torch.device = torch_xla.device()
        return device

    def transport_device(self, device: torch.device) -> torch.device:  # noqa: ARG002  gloo's tensors are the CPU's
        import torch

        return torch.device("cpu")

    def seed(self, seed: int) -> None:
        if self.is_open():
            _model().set_rng_state(seed)

    def random_state(self, device: torch.device) -> torch.Tensor | None:
        """XLA's is a number."""
        import torch

        return torch.tensor(_model().get_rng_state(str(device)))

    def restore_random_state(self, state: torch.Tensor, device: torch.device) -> None:
        _model().set_rng_state(int(state.item()), str(device))

    def random_states(self, device: torch.device) -> dict[str, object]:
        return {"xm_seed": _model().get_rng_state(str(device))}

    def restore_random_states(self, states: Mapping[str, Any], device: torch.device) -> None:
        if "xm_seed" in states:
            _model().set_rng_state(states["xm_seed"], str(device))

    def storage_id(self, tensor: torch.Tensor) -> int:
        """XLA's tensors have no storage. Those that `detach` makes of one have its number (torch_xla 2.9)."""
        import torch_xla

        return int(torch_xla._XLAC._xla_get_tensor_id(tensor))  # noqa: SLF001  what safetensors does, too

    def batch_receiver(self, device: torch.device) -> Callable[[Iterable[torch.Tensor]], None] | None:  # noqa: ARG002
        """Each new batch ends the step before, also where nothing steps. Under SPMD its rows are dealt to the devices:
        every tensor whose first dimension they divide; others, each device has whole.
        """
        from torch_xla import runtime

        return _deal_rows() if runtime.is_spmd() else _end_step_before

    def step_ender(self) -> Callable[[], None] | None:
        return _end_step

    def gradient_averager(self) -> Callable[[Iterable[torch.Tensor]], None] | None:
        from torch_xla import runtime

        return _average_gradients if runtime.world_size() > 1 else None


def refused_choice(chosen: Sequence[int], visible: Sequence[int], name: str) -> str:
    """As `Device.refused_choice`, of positions: `visible` are all chips of a generation `name`."""
    if name == _CPU_RUNTIME:
        return ""  # there is one
    if name in _TWO_CORES and len(chosen) > 1:
        return (
            f"{name} has two cores per chip, which XLA's runtime serves by threads of one process, and a rank is a "
            "process. Allowed: num_processes=1, in which torch_xla.runtime.use_spmd() trains on all cores."
        )
    if len(chosen) == 1 and list(chosen) != list(visible)[:1]:
        return "One rank computes on the first chip that XLA shows; set TPU_VISIBLE_CHIPS in the kernel for another."
    if len(chosen) not in (1, len(visible)) or list(chosen) != list(visible)[: len(chosen)]:
        allowed = "1" if len(visible) == 1 else f"1 or {len(visible)}"
        return (
            f"XLA's runtime starts one process on every chip of the machine, or one alone, and {len(chosen)} of "
            f"{len(visible)} were asked for. Allowed: num_processes={allowed}, with devices left out."
        )
    return ""


def tpu_evidence(root: Path = Path("/")) -> str:
    """What shows that this machine has a TPU; empty when nothing does. `root` is where ``dev`` and ``sys`` lie."""
    if environment.value("PJRT_DEVICE").upper() == "TPU":
        return "PJRT_DEVICE=TPU"
    for name in ("TPU_NAME", "TPU_WORKER_ID"):
        if value := environment.value(name):
            return f"{name}={value}"
    for name in _accelerators(root):
        return f"/dev/{name}"
    if any(name[:1].isdecimal() for name in _names_in(root / "dev" / "vfio")):
        for address, _ in _pci_chips(root):
            return f"PCI device {address}"
    return ""


def tpu_chips(root: Path = Path("/")) -> list[str]:
    """The generation of each chip; of those that only a device file shows, "TPU"."""
    on_bus = [name for _, name in _pci_chips(root)]
    return on_bus or ["TPU" for _ in _accelerators(root)]


def _accelerators(root: Path) -> list[str]:
    """TPU v2 to v4 have /dev/accel0; a folder /dev/accel belongs to other vendors' accelerators."""
    return [name for name in _names_in(root / "dev") if name.startswith("accel") and name[5:6].isdecimal()]


@lru_cache(maxsize=4)
def _pci_chips(root: Path) -> tuple[tuple[str, str], ...]:
    """Address and generation of each chip. Remembered: they are soldered in."""
    bus = root / "sys/bus/pci/devices"
    ids = {address: (_id(bus / address / "vendor"), _id(bus / address / "device")) for address in _names_in(bus)}
    return tuple(
        (address, _GENERATIONS[chip])
        for address, (vendor, chip) in ids.items()
        if vendor == _GOOGLE_VENDOR and chip in _GENERATIONS
    )


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  several times faster than a glob, and every launch asks
    except OSError:
        return []


def _id(path: Path) -> str:
    try:
        return path.read_text().strip().lower()
    except OSError:
        return ""


def _runs_on_cpu() -> bool:
    return environment.value("PJRT_DEVICE").upper() == "CPU"


def _release(text: str) -> str:
    """``2.9`` of ``2.9.1+cpu``."""
    return ".".join(text.partition("+")[0].split(".")[:2])


def _model() -> Any:  # noqa: ANN401  published without type information
    import torch_xla.core.xla_model

    return torch_xla.core.xla_model


class CompilationWatch:
    """Warns once when XLA goes on compiling after a training should have settled."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._compiled_before = 0
        self._told = False

    def note_step(self, num_compilations: int) -> None:
        """`num_compilations`: of this process so far."""
        self._num_steps += 1
        if self._num_steps % WATCHED_STEPS or self._told:
            return
        new = num_compilations - self._compiled_before
        self._compiled_before = num_compilations
        if self._num_steps > WATCHED_STEPS and new >= MANY_COMPILATIONS:
            self._told = True
            warnings.warn(
                f"XLA compiled {new} times in steps {self._num_steps - WATCHED_STEPS + 1} to {self._num_steps}, and "
                "each time takes long: give batches one shape (drop_last=True, padding to a fixed length), and read "
                "values such as loss.item() every so many steps, not in each.",
                stacklevel=3,
            )


_WATCH = CompilationWatch()


def _end_step() -> None:
    import torch_xla
    from torch_xla.debug import metrics

    torch_xla.sync()
    compiled = metrics.metric_data("CompileTime")
    _WATCH.note_step(compiled[0] if compiled else 0)


def _end_step_before(batch: Iterable[torch.Tensor]) -> None:
    import torch_xla

    del batch
    torch_xla.sync()


def _average_gradients(parameters: Iterable[torch.Tensor]) -> None:
    from torch_xla import runtime

    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradients:
        _model().all_reduce("sum", gradients, scale=1.0 / runtime.world_size())


def _deal_rows() -> Callable[[Iterable[torch.Tensor]], None]:
    import torch_xla
    from torch_xla import runtime
    from torch_xla.distributed import spmd

    num_devices = runtime.global_runtime_device_count()
    mesh = spmd.Mesh(list(range(num_devices)), (num_devices,), ("data",))

    def deal(batch: Iterable[torch.Tensor]) -> None:
        torch_xla.sync()
        for tensor in batch:
            if tensor.dim() and tensor.shape[0] % num_devices == 0 and tensor.device.type == "xla":
                spmd.mark_sharding(tensor, mesh, ("data", *(None for _ in tensor.shape[1:])))

    return deal


DEVICE = XlaDevice()
