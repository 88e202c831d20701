"""Does the kernel's copy of a module of the user's still agree with its file? Ranks import the file as it is now.

Only modules outside the standard library and site-packages are looked at, and only those whose file is younger than
this process: the others cannot have changed since they were imported.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

_LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})
_NOT_THE_USERS = frozenset({"__main__", __name__.split(".")[0]})
"""Pickled by value; and ourselves, who may be installed from a working tree."""
_CLOCK_SLACK_S = 2.0
"""Start times of processes are counted from boot, in hundredths of a second; file times come from another clock."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
"""Constants that are compared by value."""


def notices(referenced: Iterable[str]) -> list[str]:
    """One sentence per module among `referenced`, or imported by one of them, whose file says something else now."""
    sentences = []
    for module in _with_local_imports(referenced):
        difference = _difference(module)
        if difference:
            sentences.append(
                f"Module {module.__name__!r} has changed on disk since the kernel imported it ({difference}): the "
                f"ranks use {module.__file__} as it is now. importlib.reload({module.__name__}) brings the kernel "
                "up to date."
            )
    return sentences


def _with_local_imports(names: Iterable[str]) -> Iterator[types.ModuleType]:
    """The local modules among `names` and, from their namespaces, those that they use."""
    pending, seen = sorted(map(str, names)), set[str]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        module = sys.modules.get(name)
        if module is None or not _is_local(module):
            continue
        yield module
        for value in tuple(vars(module).values()):
            if isinstance(value, types.ModuleType):
                pending.append(value.__name__)
            elif isinstance(value, types.FunctionType | type):
                pending.append(str(value.__module__))


def _is_local(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return False
    return module.__name__.split(".")[0] not in _NOT_THE_USERS and not _is_library(file)


@functools.lru_cache(maxsize=4096)
def _is_library(file: str) -> bool:
    path = Path(file).resolve()
    if not _LIBRARY_FOLDERS.isdisjoint(path.parts):
        return True
    roots = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return any(path.is_relative_to(Path(root).resolve()) for root in roots)


def _difference(module: types.ModuleType) -> str:
    """What differs first between the module and its file, in a few words; empty when nothing does."""
    path = Path(str(module.__file__))
    try:
        if path.stat().st_mtime < psutil.Process().create_time() - _CLOCK_SLACK_S:
            return ""
        tree = ast.parse(path.read_bytes(), str(path))
        code = compile(tree, str(path), "exec", dont_inherit=True)
    except OSError:
        return "the file is gone"
    except (SyntaxError, ValueError) as error:
        return f"the file does not compile: {error}"
    on_disk = dict[str, list[types.CodeType]]()
    for function_code in _nested(code):
        on_disk.setdefault(function_code.co_qualname, []).append(function_code)
    for function in _functions(module, str(path)):
        if not any(_same(function.__code__, candidate) for candidate in on_disk.get(function.__code__.co_qualname, [])):
            return f"{function.__qualname__} is another"
    for name, value in _constants(tree):
        mine = vars(module).get(name, value)
        if isinstance(mine, _PLAIN) and (type(mine) is not type(value) or mine != value):
            return f"{name} is {value!r}, in the kernel {mine!r}"
    return ""


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested(constant)


def _functions(module: types.ModuleType, path: str) -> Iterator[types.FunctionType]:
    """The functions and methods that the kernel's module got from its file, decorators looked through."""
    pending = list(vars(module).values())
    seen = set[int]()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            if value.__module__ == module.__name__:
                pending += vars(value).values()
        elif isinstance(value, property):
            pending += [value.fget, value.fset, value.fdel]
        elif isinstance(value, classmethod | staticmethod):
            pending.append(value.__func__)
        elif isinstance(value, types.FunctionType):
            value = inspect.unwrap(value)
            if isinstance(value, types.FunctionType) and value.__code__.co_filename == path:
                yield value


def _same(one: types.CodeType, other: types.CodeType) -> bool:
    """Equal but for line numbers and file names, so that a comment added above is no difference."""
    return (
        one.co_code == other.co_code
        and one.co_names == other.co_names
        and one.co_varnames == other.co_varnames
        and one.co_freevars == other.co_freevars
        and len(one.co_consts) == len(other.co_consts)
        and all(map(_same_constant, one.co_consts, other.co_consts))
    )


def _same_constant(one: object, other: object) -> bool:
    if isinstance(one, types.CodeType) and isinstance(other, types.CodeType):
        return _same(one, other)
    return type(one) is type(other) and (one == other or repr(one) == repr(other))  # repr: nan


def _constants(tree: ast.Module) -> list[tuple[str, object]]:
    """Names that the file sets once, at its top level, to a plain constant."""
    assignments = [node for node in tree.body if isinstance(node, ast.Assign) and len(node.targets) == 1]
    names = [node.targets[0].id for node in assignments if isinstance(node.targets[0], ast.Name)]
    return [
        (node.targets[0].id, node.value.value)
        for node in assignments
        if isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, _PLAIN)
        and names.count(node.targets[0].id) == 1
    ]
