"""What a function takes along, by name: the way to an object that cannot be pickled, the largest names, the tensors.

pickle itself does not know the way it came. So the objects are walked once more, with the same reducers, breadth first
and in turns, so that a huge container does not hide what stands beside it. The walk copies nothing, ends at cycles and
after `DEADLINE_S`, and gives text only: no object outlives it.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from ..sizes import size_text
from .pickling import CellPickler, Nowhere
from .reached import IS_CODE, Child, children_of, is_atom, is_kind, tensor_bytes, weight_bytes

DEADLINE_S = 0.7
"""The whole search; a launch that cannot be must say so within a second."""
_TURN = 512
"""Children of one container that are looked at before the others have their turn."""
_LONGEST_PATH = 8
_SMALLEST_BYTES = 1024
"""What weighs less is not worth a name."""

Roots = list[tuple[str, object]]
"""Label and object, in the order in which they are pickled; the function itself has no label."""


class Culprit(NamedTuple):
    path: str
    """``train → global 'db' → attribute '_conn'``."""
    kind: str
    """Its type, as the user would write it."""
    reason: str


class _Node(NamedTuple):
    value: object
    label: str
    parent: _Node | None

    def labels_upwards(self) -> list[str]:
        """From here to the root; a loop, because a linked list may be deeper than the interpreter's stack."""
        labels = []
        node: _Node | None = self
        while node is not None:
            if node.label:
                labels.append(node.label)
            node = node.parent
        return labels

    def owner(self) -> _Node:
        """The outermost thing on the way here that is data and has a label: what the user calls by a name."""
        owner, node = self, self.parent
        while node is not None and (node.label or node.parent) and not is_kind(node.value, IS_CODE):
            owner, node = node, node.parent
        return owner


class Captured:
    """What can be reached from `roots`. Made when a question comes up, dropped with the answer."""

    def __init__(self, name: str, roots: Roots) -> None:
        self._name = name
        self._roots = roots

    def culprit(self) -> Culprit | None:
        """The object nearest to a root that cannot be pickled; None when none was found in time."""
        found: list[Culprit] = []

        def stop(node: _Node, error: Exception) -> bool:
            found.append(Culprit(self._path(node), type_name(node.value), describe_error(error)))
            return True

        self._walk(visit=lambda _: None, failed=stop)
        return found[0] if found else None

    def largest(self, count: int = 3) -> list[tuple[str, int]]:
        """The names under which most bytes hang, largest first; approximate for what is not an array or tensor."""
        bytes_by_name: Counter[str] = Counter()
        counted: set[int] = set()

        def weigh(node: _Node) -> None:
            key, num_bytes = weight_bytes(node.value)
            if num_bytes and key not in counted:
                counted.add(key)
                bytes_by_name[self._path(node.owner())] += num_bytes

        self._walk(visit=weigh, failed=lambda _, __: False)
        return [
            (name, num_bytes) for name, num_bytes in bytes_by_name.most_common(count) if num_bytes >= _SMALLEST_BYTES
        ]

    def tensors_elsewhere(self) -> list[str]:
        """One phrase per name under which tensors of another device than the CPU hang."""
        found: dict[str, list[tuple[str, str, int]]] = {}

        def note(node: _Node) -> None:
            device, num_bytes = tensor_bytes(node.value)
            if device not in ("", "cpu", "meta"):
                found.setdefault(self._path(node.owner()), []).append((self._path(node), device, num_bytes))

        self._walk(visit=note, failed=lambda _, __: False)
        return [
            f"{tensors[0][0]} ({tensors[0][1]}, {size_text(tensors[0][2])})"
            if len(tensors) == 1
            else f"{owner} ({len(tensors)} tensors, {size_text(sum(num_bytes for _, _, num_bytes in tensors))})"
            for owner, tensors in found.items()
        ]

    def _walk(self, visit: Callable[[_Node], None], failed: Callable[[_Node, Exception], bool]) -> None:
        """`visit` every object once; `failed` is told of those that cannot be reduced and may end the walk."""
        pickler = CellPickler(Nowhere(), [])
        deadline = time.monotonic() + DEADLINE_S
        seen: dict[int, object] = {}  # holds what reducers made, so that no id is used twice
        waiting: deque[tuple[_Node | None, Iterator[Child]]] = deque([(None, iter(self._roots))])
        while waiting and time.monotonic() < deadline:
            parent, children = waiting.popleft()
            try:
                turn = list(islice(children, _TURN))
            except Exception as error:  # noqa: BLE001  an iterator that a user's reducer gave
                if parent is not None and failed(parent, error):
                    return
                continue
            for label, value in turn:
                if is_atom(value) or id(value) in seen:
                    continue
                seen[id(value)] = value
                node = _Node(value, label, parent)
                visit(node)
                try:
                    waiting.append((node, iter(children_of(value, pickler))))
                except Exception as error:  # noqa: BLE001  whatever a user's reducer raises is the answer
                    if failed(node, error):
                        return
            if len(turn) == _TURN:
                waiting.append((parent, children))

    def _path(self, node: _Node) -> str:
        labels = [self._name, *reversed(node.labels_upwards())]
        if len(labels) > _LONGEST_PATH:
            labels = [*labels[: _LONGEST_PATH - 3], "…", *labels[-2:]]
        return " → ".join(labels)


def type_name(value: object) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"


def describe_error(error: BaseException) -> str:
    """The error in one line, its class left out where pickle itself complains."""
    text = " ".join(str(error).split())
    return text if isinstance(error, TypeError) and text else f"{type(error).__name__}: {text}".rstrip(": ")
