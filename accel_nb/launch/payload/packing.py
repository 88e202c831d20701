"""A function on its way to the ranks, and what it returned on its way back.

    kernel  pack(function, args, kwargs) ─▶ Packed ──fd──▶ unpack(fd) ─▶ function, args, kwargs   rank
    kernel  unpack_value(fd) ◀──────────────────fd── Packed ◀─ pack_value(value)                  rank

Everything is pickled once, before any process starts; large arrays and tensors lie beside the pickle in one memory file
that all ranks map copy-on-write. Nothing here holds on to the user's objects, neither after a return nor after a raise:
errors carry text, and are raised from a frame that has let go of its arguments.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import pickle
import platform
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import cloudpickle
from msgspec.structs import replace

from ...errors import NotPicklable, PayloadError, PayloadTooLarge, PythonMismatch, ResultError
from ...protocol.payload import Payload
from ..sizes import size_text
from . import cell_sources, local_modules
from .captured import Captured, Roots, describe_error, type_name
from .free_memory import NoRoom, require_room
from .memory_file import MemoryFileWriter, Packed, copied, mapped, read_header
from .pickling import CellPickler, FunctionPickler, ValuePickler

__all__ = ["Packed", "function_name", "pack", "pack_value", "unpack", "unpack_value"]

LARGE_PAYLOAD_BYTES = 256 << 20
"""From here on the size is told, with the names that make it up."""

COPIED_BELOW_BYTES = 64 << 20
"""Smaller results are copied out of their memory file, larger ones stay mapped, which holds the file as a whole."""

_PYTHON = ".".join(platform.python_version_tuple()[:2])


class _Cargo(NamedTuple):
    """One thing to pack, and how to speak of it."""

    name: str
    content: object
    """What is pickled."""
    roots: Roots
    """The same, with labels."""
    pickler: type[CellPickler]


def pack(
    function: Callable[..., object], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
) -> Packed:
    """`function` and its arguments in a memory file that the caller owns. In the kernel, on any thread.

    Raises `NotPicklable` with the path to the object that cannot travel, and `PayloadTooLarge` before anything large is
    copied. Local modules travel by name: ranks import them fresh from disk.
    """
    outcome = _packed_function(function, args, dict(kwargs or {}))
    del function, args, kwargs
    return _given(outcome)


def pack_value(value: object) -> Packed:
    """A rank's return value in a memory file that the caller owns; tensors on the CPU. In a rank, on any thread.

    Raises `NotPicklable` and `PayloadTooLarge` as `pack` does.
    """
    outcome = _packed(_Cargo("return value", value, [("", value)], ValuePickler))
    del value
    return _given(outcome)


def unpack(fd: int) -> tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]:
    """The function and its arguments. In a rank, once, after its ``__main__`` and ``sys.path`` are set up.

    Functions typed in the notebook get this process's ``__main__`` as their globals. Large arrays and tensors share
    the file's memory until written to; `fd` may be closed. Raises `PythonMismatch`, and `PayloadError` when something
    that the function needs cannot be loaded here.
    """
    header = read_header(fd)
    _check_versions(header)
    cell_sources.register(header.sources)
    content, buffers = mapped(fd, header)
    try:
        function, args, kwargs = pickle.loads(content, buffers=buffers)
    except Exception as error:
        raise PayloadError(
            f"{header.function_name} cannot be loaded in the rank: {describe_error(error)}. What it uses by name "
            "(modules, and what is defined in them) must be importable there as it is in the kernel."
        ) from error
    return function, args, kwargs


def unpack_value(fd: int) -> object:
    """What `pack_value` packed. In the kernel, on any thread; imports torch only when there is a tensor in it.

    Arrays and tensors are writable and independent of `fd`, which may be closed. Raises `ResultError` when the value
    cannot be rebuilt.
    """
    header = read_header(fd)
    cell_sources.register(header.sources)
    large = header.pickle_bytes + sum(num_bytes for _, num_bytes in header.buffers) >= COPIED_BELOW_BYTES
    content, buffers = (mapped if large else copied)(fd, header)
    try:
        return pickle.loads(content, buffers=buffers)
    except Exception as error:
        raise ResultError(
            f"What a rank returned cannot be rebuilt here: {describe_error(error)}. Return plain data: tensors, "
            "arrays, numbers, a state_dict, or a model without its wrapper (accelerator.unwrap_model(model))."
        ) from error


def function_name(function: Callable[..., object]) -> str:
    """What the user calls `function`."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _given(outcome: Packed | BaseException) -> Packed:
    if isinstance(outcome, Packed):
        return outcome
    raise outcome


def _packed_function(
    function: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Packed | BaseException:
    roots: Roots = [("", function), *_labelled_arguments(function, args, kwargs)]
    return _packed(_Cargo(function_name(function), (function, tuple(args), kwargs), roots, FunctionPickler))


def _labelled_arguments(function: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Roots:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # not a callable, or one that does not tell
        names = []
    labels = [repr(name) for name in names[: len(args)]]
    labels += [str(index) for index in range(len(labels), len(args))]
    return [
        *((f"argument {label}", value) for label, value in zip(labels, args, strict=True)),
        *((f"argument {name!r}", value) for name, value in kwargs.items()),
    ]


def _packed(cargo: _Cargo) -> Packed | BaseException:
    """The memory file, or the error to be raised, which holds no object of the user's."""
    with contextlib.closing(MemoryFileWriter()) as writer:
        buffers: list[pickle.PickleBuffer] = []
        pickler = cargo.pickler(writer, buffers)
        failure = _pickle_into(cargo, pickler)
        if failure is not None:
            return failure
        header = Payload(
            python=_PYTHON,
            cloudpickle=cloudpickle.__version__,
            function_name="" if cargo.pickler is ValuePickler else cargo.name,
            pickle_bytes=writer.pickle_bytes,
            sources=pickler.sources.texts,
        )
        layout = _append_all(cargo, writer, [buffer.raw() for buffer in buffers])
        if not isinstance(layout, tuple):
            return layout
        return writer.finish(replace(header, buffers=layout), _notices(cargo, pickler, writer.size_bytes))


def _pickle_into(cargo: _Cargo, pickler: CellPickler) -> BaseException | None:
    try:
        pickler.dump(cargo.content)
    except KeyboardInterrupt:
        return KeyboardInterrupt()
    except (NoRoom, MemoryError) as error:
        return _too_large(cargo, error)
    except Exception as error:  # noqa: BLE001  a user's reducer may raise anything
        reason, latest = describe_error(error), type_name(pickler.latest)
    else:
        return None
    return _not_picklable(cargo, reason, latest)


def _append_all(
    cargo: _Cargo, writer: MemoryFileWriter, views: list[memoryview]
) -> tuple[tuple[int, int], ...] | BaseException:
    try:
        require_room(sum(view.nbytes for view in views))
        return tuple([writer.append(view) for view in views])
    except KeyboardInterrupt:
        return KeyboardInterrupt()
    except (NoRoom, MemoryError, OSError) as error:  # OSError: the memory was taken by others meanwhile
        return _too_large(cargo, error)


def _notices(cargo: _Cargo, pickler: CellPickler, size_bytes: int) -> tuple[str, ...]:
    """What the user should know about a function that is on its way. Nothing about a result."""
    if cargo.pickler is ValuePickler:
        return ()
    sentences = local_modules.notices(pickler.referenced_modules)
    captured = Captured(cargo.name, cargo.roots)
    if pickler.moved_to_cpu:
        tensors = "; ".join(captured.tensors_elsewhere()) or "tensors deep inside large containers"
        sentences.append(f"Copied to the CPU for the ranks, which put them on their own devices: {tensors}.")
    if size_bytes > LARGE_PAYLOAD_BYTES:
        sentences.append(
            f"{cargo.name} takes {size_text(size_bytes)} along to the ranks: {_largest(captured)}. Data that is read "
            "from disk inside the function need not be copied at every launch."
        )
    return tuple(sentences)


def _not_picklable(cargo: _Cargo, reason: str, latest: str) -> NotPicklable:
    culprit = Captured(cargo.name, cargo.roots).culprit()
    refusal = "cannot be brought back to the kernel" if cargo.pickler is ValuePickler else "cannot be sent to the ranks"
    if culprit is None:
        return NotPicklable(
            f"{cargo.name} {refusal}: it leads to an object of type {latest}, or to one inside it, which cannot be "
            f"pickled ({reason}). The way there was not found. {_advice(cargo, latest)}",
            cargo.name,
        )
    return NotPicklable(
        f"{culprit.path} {refusal}: its type {culprit.kind} cannot be pickled ({culprit.reason}). "
        f"{_advice(cargo, culprit.kind)}",
        culprit.path,
    )


def _advice(cargo: _Cargo, kind: str) -> str:
    if cargo.pickler is ValuePickler:
        return "Return plain data instead: tensors, arrays, numbers, text, a model or its state_dict."
    if kind.startswith("_io."):
        return f"Nothing was started. Open the file inside {cargo.name}, and pass its path."
    if kind.endswith("generator"):
        return f"Nothing was started. Create it inside {cargo.name}, or pass a list."
    return (
        f"Nothing was started. Create it inside {cargo.name}, and pass what is needed to create it "
        "(a path, an address, a seed)."
    )


def _too_large(cargo: _Cargo, error: NoRoom | MemoryError | OSError) -> PayloadTooLarge:
    needs = (
        f"{size_text(error.needed_bytes)} of memory, and {size_text(error.free_bytes)} are free"
        if isinstance(error, NoRoom)
        else f"more memory than is free ({describe_error(error)})"
    )
    advice = (
        "Return less, or save it to a file in the rank and return the path."
        if cargo.pickler is ValuePickler
        else "Read the data from disk inside the function, or open it memory-mapped there."
    )
    return PayloadTooLarge(
        f"{cargo.name} does not fit: it needs {needs}. The largest: {_largest(Captured(cargo.name, cargo.roots))}. "
        f"{advice}"
    )


def _largest(captured: Captured) -> str:
    return ", ".join(f"{name} ({size_text(num_bytes)})" for name, num_bytes in captured.largest())


def _check_versions(header: Payload) -> None:
    """Bytecode needs the same minor version of Python; cloudpickle's reducers move between minor versions."""
    here = (_PYTHON, _minor(cloudpickle.__version__))
    if (header.python, _minor(header.cloudpickle)) != here:
        raise PythonMismatch(
            f"{header.function_name} was packed by Python {header.python} with cloudpickle {header.cloudpickle}; this "
            f"rank runs Python {_PYTHON} with cloudpickle {cloudpickle.__version__} ({sys.executable}). Functions "
            "travel only between equal versions: start the ranks from the kernel's own environment, or run "
            f"`pip install cloudpickle=={header.cloudpickle}` in a Python {header.python} there."
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
