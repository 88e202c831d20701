"""Take over the kernel's surroundings in a rank: environment, working directory, paths, locale, thread pools."""

from __future__ import annotations

import ctypes
import functools
import locale
import os
import secrets
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable
from pathlib import Path

from ...errors import PlanError
from ...protocol import environment
from ...protocol.commands import Surroundings

_OPENBLAS_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads",
)
"""Names under which NumPy's and SciPy's wheels and distributions export OpenBLAS's setter."""
_OPENMP_SETTERS = ("omp_set_num_threads",)
_SETTERS = {
    "openblas": _OPENBLAS_SETTERS,
    "libgomp": _OPENMP_SETTERS,
    "libomp": _OPENMP_SETTERS,
    "libiomp5": _OPENMP_SETTERS,
    "libmkl_rt": ("MKL_Set_Num_Threads",),
}
"""Part of a library's file name -> its setter of the number of threads, the first that it has. Wheels bring copies of
their own, with a hash in the name.
"""
_LLVM_OPENMP = ("libomp", "libiomp5")


def of_this_process(variables: dict[str, str]) -> Surroundings:
    """What the calling process (the kernel) has now. `variables` is the environment the ranks start from.

    Raises PlanError when its working directory is gone.
    """
    try:
        cwd = os.fsencode(Path.cwd())
    except FileNotFoundError as error:
        raise PlanError(
            "This kernel's working directory has been deleted, and ranks start there. Change to one that exists with "
            "os.chdir(...)."
        ) from error
    return Surroundings(
        variables=environment.to_bytes(variables),
        cwd=cwd,
        sys_path=_import_path(sys.path),
        argv=tuple(_encoded(str(argument)) for argument in sys.argv),
        umask=_umask(),
        locale=locale.setlocale(locale.LC_ALL),
    )


def _import_path(entries: Iterable[object]) -> tuple[bytes, ...]:
    """Folders of ``sys.path`` by name. The import system ignores what is neither a str nor, for us, a path object."""
    return tuple(_encoded(os.fsdecode(entry)) for entry in entries if isinstance(entry, str | os.PathLike))


def _encoded(text: str) -> bytes:
    """As the system has it. What it could not have given us (a lone surrogate of another kind) is written out."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode(sys.getfilesystemencoding(), "backslashreplace")


def _umask() -> int:
    """Read without setting it, where that is possible: other threads create files, or launch, at this moment."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("Umask:"):
            return int(line.split()[1], base=8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def take_over(surroundings: Surroundings, *, cpu_threads: int) -> None:
    """Make them this process's own. For a rank, before any user code."""
    environment.replace_all(environment.from_bytes(surroundings.variables))
    # Both were read from the environment of the process we were forked from: TZ and TMPDIR.
    time.tzset()
    tempfile.tempdir = None
    os.chdir(surroundings.cwd)
    os.umask(surroundings.umask)
    sys.path[:] = map(os.fsdecode, surroundings.sys_path)
    sys.argv[:] = map(os.fsdecode, surroundings.argv)
    locale.setlocale(locale.LC_ALL, surroundings.locale)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    set_thread_pools(cpu_threads)
    reseed()


def set_thread_pools(num_threads: int) -> None:
    """Size the pools of torch, MKL, OpenBLAS and the OpenMP runtimes that are loaded already, for the calling thread.
    The variables only act on later loads.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(num_threads)
    for setter in find_thread_pools():
        setter(num_threads)


@functools.cache
def find_thread_pools() -> list[Callable[[int], object]]:
    """Setters of the number of threads, one for each library that has a pool and is loaded when this is called first.

    The server calls it before it forks: the search reads a long list of maps.
    """
    setters: list[Callable[[int], object]] = []
    for path, names in _loaded_pools().items():
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
        except OSError:
            # Mapped, but not as a library or no more under this name: replaced on disk since.
            continue
        found = (getattr(library, name, None) for name in names)
        setters += [setter for setter in found if setter is not None][:1]
    return setters


def _loaded_pools() -> dict[str, tuple[str, ...]]:
    """Libraries of this process that have a pool of threads, by path, with the names of their setters."""
    maps = Path("/proc/self/maps")
    lines = maps.read_bytes().splitlines() if maps.exists() else []
    paths = {os.fsdecode(line.split(maxsplit=5)[-1]) for line in lines if b".so" in line}
    found: dict[str, tuple[str, ...]] = {}
    for path in paths:
        file = path.rpartition("/")[2]
        for part, names in _SETTERS.items():
            if part in file:
                found[path] = names
    llvm = [path for path in found if path.rpartition("/")[2].startswith(_LLVM_OPENMP)]
    # A second copy of LLVM's runtime ends the process as soon as it is used ("OMP: Error #15"): that is not our call.
    return found if len(llvm) <= 1 else {path: names for path, names in found.items() if path not in llvm}


def reseed() -> None:
    """Give NumPy's and torch's global generators fresh entropy, as in a new interpreter: a fork copies their state.

    Python's own does so by itself; those of accelerators are made only after the fork.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(secrets.randbits(32))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
