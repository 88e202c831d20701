"""What pickle reaches from one object, with a label for each step: ``global 'db'``, ``attribute '_conn'``, ``key 3``.

A border module: it asks foreign objects for their types, because that is how pickle and cloudpickle choose.
"""

from __future__ import annotations

import functools
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias, TypeGuard

from .mapped_arrays import reopening
from .pickling import CellPickler, Nowhere

Child: TypeAlias = tuple[str, object]
"""A label, empty where the step has no meaning for people, and the object it leads to."""

_ATOMS = frozenset({type(None), bool, int, float, complex, range, slice, type(Ellipsis), type(NotImplemented)})
_TEXTS = frozenset({str, bytes, bytearray})
_SHORT_TEXT = 4096

IS_CODE = (
    types.FunctionType, types.MethodType, types.ModuleType, types.CodeType, types.CellType,
    type, functools.partial, staticmethod, classmethod, property,
)  # fmt: skip
"""What holds data on behalf of the program, not of the user: a name below it is the one that the user gave."""

_Parts: TypeAlias = Callable[[Any, tuple[Any, ...]], Iterable[Child]]

_MODULE_REGISTRIES = frozenset({"_modules", "_parameters", "_buffers"})
"""torch.nn.Module keeps in these what its user sees as attributes."""

_BYTES_PER_ITEM = 8


def is_kind(value: object, kind: type | tuple[type, ...]) -> TypeGuard[Any]:
    """isinstance by the real type: a proxy's ``__class__`` may lie, or raise."""
    return issubclass(type(value), kind)


def is_atom(value: object) -> bool:
    """Leads nowhere and weighs next to nothing."""
    return type(value) in _ATOMS or (type(value) in _TEXTS and len(value) < _SHORT_TEXT)  # type: ignore[arg-type]


def children_of(value: object, pickler: CellPickler) -> Iterable[Child]:
    """What is pickled along with `value`. Raises what its reduction raises when it cannot be pickled itself."""
    container = _CONTAINERS.get(type(value))
    if container is not None:
        return container(value)
    library_object = _library_children(value)
    if library_object is not None:
        return library_object
    reduction = _reduction(value, pickler)
    if isinstance(reduction, str):
        CellPickler(Nowhere(), []).dump(value)  # pickled by name: finds out whether the name leads to it
        return ()
    parts: _Parts = _PARTS.get(type(value), _class_parts if is_kind(value, type) else _parts)
    return parts(value, reduction)


def weight_bytes(value: object) -> tuple[int, int]:
    """Identity and bytes of the memory that `value` itself brings along; 0 bytes when that is next to nothing."""
    if type(value) in _TEXTS:
        return id(value), len(value)  # type: ignore[arg-type]
    if type(value) in _CONTAINERS:
        return id(value), len(value) * _BYTES_PER_ITEM  # type: ignore[arg-type]
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and is_kind(value, numpy.ndarray):
        is_in_a_file = is_kind(value, numpy.memmap) and reopening(value) is not None
        return id(value), 0 if is_in_a_file else int(value.nbytes)
    if torch is not None and is_kind(value, torch.Tensor) and value.device.type == "xla":
        return id(value), tensor_bytes(value)[1]  # it has no storage
    if torch is not None and is_kind(value, torch.Tensor) and value.layout is torch.strided:
        storage = value.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    return id(value), 0


def tensor_bytes(value: object) -> tuple[str, int]:
    """Device and size of a tensor; no device for anything else."""
    torch = sys.modules.get("torch")
    if torch is None or not is_kind(value, torch.Tensor):
        return "", 0
    return str(value.device), value.numel() * value.element_size()


def _library_children(value: object) -> Iterable[Child] | None:
    """Arrays and tensors are not reduced, which could copy them. None: `value` is neither."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and is_kind(value, numpy.ndarray):
        return ((f"item {index}", item) for index, item in enumerate(value.flat)) if value.dtype.hasobject else ()
    if torch is not None and is_kind(value, torch.Tensor):
        return _attributes(vars(value))
    if torch is not None and is_kind(value, (torch.UntypedStorage, torch.storage.TypedStorage)):
        return ()
    return None


def _reduction(value: object, pickler: CellPickler) -> str | tuple[Any, ...]:
    """In the order of the C pickler's ``save``; a text when `value` is pickled by its name."""
    reduction: Any = pickler.reducer_override(value)
    if reduction is NotImplemented:
        if is_kind(value, (type, types.FunctionType)):
            return "by name"
        reducer = pickler.dispatch_table.get(type(value))
        reduction = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if reducer is None else reducer(value)
    if not isinstance(reduction, str | tuple):
        raise pickle.PicklingError(f"its __reduce__ gives a {type(reduction).__name__}, not a string or tuple")
    return reduction


def _sequence(value: Iterable[object]) -> Iterator[Child]:
    return ((f"item {index}", item) for index, item in enumerate(value))


def _mapping(value: dict[object, object]) -> Iterator[Child]:
    for key, item in list(value.items()):
        yield "a key", key
        yield f"key {_short_repr(key)}", item


def _members(value: Iterable[object]) -> Iterator[Child]:
    return (("a member", item) for item in value)


def _leaf(_: object) -> Iterable[Child]:
    return ()


def _attributes(names: dict[str, object]) -> Iterator[Child]:
    for name, value in list(names.items()):
        if name in _MODULE_REGISTRIES and isinstance(value, dict):
            yield from _attributes(value)
        else:
            yield f"attribute {name!r}", value


def _function_parts(function: types.FunctionType, reduction: tuple[Any, ...]) -> Iterator[Child]:
    """cloudpickle's state of a function: its attributes and, by slot, globals, closure, defaults, annotations."""
    attributes, slots = reduction[2]
    yield from ((f"global {name!r}", value) for name, value in slots.get("__globals__", {}).items())
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f"closure variable {name!r}", cell
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    defaulted = positional[len(positional) - len(defaults) :]
    yield from _defaults(zip(defaulted, defaults, strict=True))
    yield from _defaults((function.__kwdefaults__ or {}).items())
    yield from ((f"annotation of {name!r}", value) for name, value in slots.get("__annotations__", {}).items())
    yield from _attributes(attributes)


def _defaults(pairs: Iterable[tuple[str, object]]) -> Iterator[Child]:
    return ((f"default of {name!r}", value) for name, value in pairs)


def _class_parts(_: object, reduction: tuple[Any, ...]) -> Iterator[Child]:
    _, arguments, (names, _), *_ = reduction
    for name, value in names.items():
        yield f"{'method' if isinstance(value, types.FunctionType) else 'class attribute'} {name!r}", value
    yield from (("", argument) for argument in arguments)


def _method_parts(method: types.MethodType, _: tuple[Any, ...]) -> Iterator[Child]:
    yield "", method.__func__
    yield "self", method.__self__


def _partial_parts(partial: functools.partial[object], _: tuple[Any, ...]) -> Iterator[Child]:
    yield "", partial.func
    yield from ((f"argument {index}", value) for index, value in enumerate(partial.args))
    yield from ((f"argument {name!r}", value) for name, value in partial.keywords.items())
    yield from _attributes(vars(partial))


def _wrapped_parts(_: object, reduction: tuple[Any, ...]) -> Iterator[Child]:
    return (("", argument) for argument in reduction[1])


def _no_parts(_: object, __: tuple[Any, ...]) -> Iterable[Child]:
    return ()


def _parts(value: object, reduction: tuple[Any, ...]) -> Iterator[Child]:
    """Of any object, from the tuple that object.__reduce__ documents."""
    maker, arguments, state, items, pairs, setter = islice((*reduction, None, None, None, None), 6)
    yield "", maker
    for argument in arguments:
        yield ("" if is_kind(argument, type) else f"argument of {type(value).__name__}()"), argument
    slots: object = {}
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):  # noqa: PLR2004  (dict, slots)
        state, slots = state
    for part in (state, slots):
        if isinstance(part, dict) and all(isinstance(name, str) for name in part):
            yield from _attributes(part)
        else:
            yield "state", part
    yield from _sequence(items or ())
    for key, item in pairs or ():
        yield "a key", key
        yield f"key {_short_repr(key)}", item
    yield "", setter


def _short_repr(key: object) -> str:
    if not isinstance(key, str | bytes | int | float | bool | None):
        return f"of type {type(key).__name__}"
    text = repr(key)
    return text if len(text) <= 40 else f"{text[:36]}…{text[-1]}"  # noqa: PLR2004


_CONTAINERS: dict[type, Callable[[Any], Iterable[Child]]] = {
    list: _sequence,
    tuple: _sequence,
    dict: _mapping,
    set: _members,
    frozenset: _members,
    str: _leaf,
    bytes: _leaf,
    bytearray: _leaf,
    pickle.PickleBuffer: _leaf,
}
_PARTS: dict[type, _Parts] = {
    types.FunctionType: _function_parts,
    types.MethodType: _method_parts,
    types.CellType: _wrapped_parts,
    types.ModuleType: _wrapped_parts,
    types.CodeType: _no_parts,
    functools.partial: _partial_parts,
    staticmethod: _wrapped_parts,
    classmethod: _wrapped_parts,
    property: _wrapped_parts,
}
