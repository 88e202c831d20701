"""Around the operations of ``torch.distributed`` that the user or a library calls, in ranks only: each is noted in the
ledger, and those of all ranks are compared before they begin.

Signature, result and effect of torch's functions stay, and so do the functions themselves. In the thread that runs the
user's function an operation of all ranks gets a number, and one of a smaller group is noted as an activity; of the
user's other threads those of all ranks are counted. What such a function calls in turn, and what `accel_nb`'s own
operations call, is not noted again; nor is what a backward calls: the callbacks of its futures (communication hooks)
run in this thread or in one of torch's, as it happens, so that ranks would count differently.

Ranks wait for each other only where the operation would wait anyway: over gloo, without ``async_op``. Elsewhere a rank
looks at those that have come before it, and goes on.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CellType, FunctionType, ModuleType
from typing import Any

import msgspec

from ...protocol import agreement, ledger
from ...protocol.ledger import RankLedger
from ...protocol.places import users_place
from ..failures import rank_ranges
from .torch_operations import ACTIVITIES, OPERATIONS, Given, Operation, Waits, peer_text

Function = Callable[..., Any]  # torch's: what it takes and gives is its own business

_OURS = ("accel_nb.launch", "accel_nb.protocol")
_NOTHING = nullcontext()
_FOR_SOME_S = 1.0
"""So long ranks wait for all before an operation that blocks maybe only for some of them: later ones may depend on what
the others do afterwards.
"""


class _Transport(msgspec.Struct, frozen=True, kw_only=True):
    """What carries the operations of the default group of one generation."""

    generation: int
    waits_with_cpu_tensors: bool
    """Whether an operation on CPU tensors returns only when it is done, as gloo's do."""
    waits_always: bool


class _ThreadState(threading.local):
    depth = 0
    """Operations and backward passes around what is called now."""


class CollectiveShim:
    """Wraps torch's functions in this process. Installed before ranks are forked, active where there is a ledger."""

    def __init__(self) -> None:
        self._transport = _Transport(generation=-1, waits_with_cpu_tensors=False, waits_always=False)
        self._has_new_gradients = False
        self._in_backward = False
        """Of the thread that runs the function."""
        self._other_thread = _ThreadState()
        self._is_installed = self._knows_compiler = False

    def install(self) -> None:
        """A second call, as of a fork whose parent has done so, does nothing."""
        import torch
        from torch.distributed import distributed_c10d
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if self._is_installed:
            return
        self._is_installed = True
        for name, operation in OPERATIONS.items():
            _wrap(distributed_c10d, name, functools.partial(self._around, operation))
        for name, relation in ACTIVITIES.items():
            activity = functools.partial(self._around_activity, f"torch.distributed.{name}", relation)
            _wrap(distributed_c10d, name, activity)
        _replace(torch.autograd, "backward", self._around_backward(torch.autograd.backward))
        register_optimizer_step_post_hook(self._note_step)

    def keep_compiler_out(self) -> None:
        """Once torch's compiler is there, have it trace none of our functions that are called from those which it
        leaves alone: it would freeze their numbers. Takes 10 ms, so the server does it for its forks.
        """
        trace_rules = sys.modules.get("torch._dynamo.trace_rules")
        if trace_rules is None or self._knows_compiler:
            return
        self._knows_compiler = True
        for name in _OURS:
            trace_rules.add(name)

    def _around(self, operation: Operation, original: Function) -> Function:
        given_to = operation.given

        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  torch's
            own = ledger.own()
            if own is None or own.inside or not own.may_write:
                with self._without_number(own, operation, args, kwargs):
                    return original(*args, **kwargs)
            try:
                given = given_to(*args, **kwargs)
            except (AttributeError, TypeError, IndexError):
                # torch refuses them, in its own words.
                return original(*args, **kwargs)
            if given.group is not None and not _is_default(given.group):
                with own.activity(f"{operation.name} {_of_group(given.group)}", *users_place()):
                    return original(*args, **kwargs)
            if not own.spans_run or self._in_backward:
                return original(*args, **kwargs)
            number = self._begin(own, operation, given)
            hopeless = ""
            try:
                if own.page.is_whole and own.compares and not agreement.is_unchecked():
                    hopeless = self._compare(own, number, operation.waits, given)
                return original(*args, **kwargs)
            except RuntimeError as error:
                if hopeless:
                    error.add_note(hopeless)
                raise
            finally:
                own.end(number)

        return noted

    def _without_number(
        self, own: RankLedger | None, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AbstractContextManager[None]:
        if own is None or own.may_write:
            return _NOTHING
        counts = not self._other_thread.depth and own.spans_run and _is_pythons_thread()
        try:
            counts = counts and _is_default(operation.given(*args, **kwargs).group)
        except (AttributeError, TypeError, IndexError):
            counts = False
        return self._elsewhere(own, operation.name if counts else "")

    @contextmanager
    def _elsewhere(self, own: RankLedger, name: str) -> Iterator[None]:
        """Around what another thread calls. `name`: of an operation that counts; empty: it does not."""
        self._other_thread.depth += 1
        try:
            if name:
                with own.elsewhere(name, *users_place()):
                    yield
            else:
                yield
        finally:
            self._other_thread.depth -= 1

    def _begin(self, own: RankLedger, operation: Operation, given: Given) -> int:
        self.keep_compiler_out()
        compared = own.compares and not agreement.is_unchecked()
        return own.begin(operation.name, given.text, *users_place(), compared=compared)

    def _compare(self, own: RankLedger, number: int, waits: Waits, given: Given) -> str:
        """Raises DistributedOperationException when a rank calls something else, or never comes. Gives why torch's
        operation, which is to say so itself, can only fail; usually empty.
        """
        if waits != "by itself" and not given.is_async and self._operation_waits(number, given):
            # Two ranks always wait for each other.
            for_all = waits == "for all" or own.page.num_ranks == 2  # noqa: PLR2004
            timeout_s = _timeout_s if given.timeout is None else given.timeout.total_seconds
            return agreement.agree(own, number, timeout_s=timeout_s, at_most_s=None if for_all else _FOR_SOME_S)
        agreement.look(own, number)
        return ""

    def _operation_waits(self, number: int, given: Given) -> bool:
        generation = number >> ledger.GENERATION_BITS
        if self._transport.generation != generation:
            self._transport = _transport(generation)
        if given.tensor is None:
            return self._transport.waits_always
        return self._transport.waits_with_cpu_tensors and given.tensor.device.type == "cpu"

    @staticmethod
    def _around_activity(name: str, relation: str, original: Function) -> Function:
        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  torch's
            own = ledger.own()
            if own is None or own.inside or not own.may_write:
                return original(*args, **kwargs)
            with own.activity(name + peer_text(relation, args, kwargs), *users_place()):
                return original(*args, **kwargs)

        return noted

    def _around_backward(self, original: Function) -> Function:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  torch's
            own = ledger.own()
            if own is None or not own.spans_run:
                return original(*args, **kwargs)
            if not own.may_write:
                with self._elsewhere(own, ""):
                    return original(*args, **kwargs)
            self._has_new_gradients = True
            outer, self._in_backward = self._in_backward, True
            try:
                with own.activity("backward", *users_place()):
                    return original(*args, **kwargs)
            finally:
                self._in_backward = outer

        return backward

    def _note_step(self, *_: object) -> None:
        """After each step of any optimizer. Those that share one backward count as one step."""
        own = ledger.own()
        if self._has_new_gradients and own is not None and own.may_write:
            self._has_new_gradients = False
            own.step()


def _wrap(module: ModuleType, name: str, around: Callable[[Function], Function]) -> None:
    """Put `around` the function ``module.name``; nothing where there is none.

    Most are a logging wrapper of torch's (``c10d_logger._exception_logger``) around a function in a cell of their
    closure. There ours goes, too: the functions stay the same objects, which the compiler knows some of. Deprecated
    ones have one more wrapper inside; below that, too, so that its warning names the same file as ever.
    """
    function = getattr(module, name, None)
    if not isinstance(function, FunctionType):
        return
    cell = _inner_cell(function)
    if cell is None:
        _replace(module, name, around(function))
    else:
        cell.cell_contents = around(cell.cell_contents)


def _inner_cell(function: FunctionType) -> CellType | None:
    """The innermost one that holds a function of the same name."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for free, cell in cells:
        # "arg": of typing_extensions.deprecated.
        if free in ("func", "arg") and isinstance(cell.cell_contents, FunctionType):
            return _inner_cell(cell.cell_contents) or cell
    return None


def _replace(module: ModuleType, name: str, new: Function) -> None:
    """Put `new` wherever torch keeps the function ``module.name``."""
    old = vars(module)[name]
    for module_name, other in list(sys.modules.items()):
        if module_name.startswith("torch.") and vars(other).get(name) is old:
            vars(other)[name] = new


def _is_pythons_thread() -> bool:
    """Whether somebody has started this thread: those of torch call what belongs to a backward (futures' callbacks)."""
    ident = threading.get_ident()
    # Of a thread that is not Python's, its `current_thread` would make up an object.
    return any(one.ident == ident and not isinstance(one, threading._DummyThread) for one in threading.enumerate())  # noqa: SLF001


def _of_group(group: Any) -> str:  # noqa: ANN401  torch does not say
    from torch.distributed import get_process_group_ranks

    try:
        return _of_ranks(tuple(get_process_group_ranks(group)))
    except (KeyError, ValueError):  # this rank is no member
        return "in a group"


@functools.cache
def _of_ranks(ranks: tuple[int, ...]) -> str:
    return f"in the group of rank{'s' if len(ranks) > 1 else ''} {rank_ranges(ranks)}"


def _is_default(group: object) -> bool:
    from torch.distributed import distributed_c10d

    return group is None or group is distributed_c10d.GroupMember.WORLD


def _transport(generation: int) -> _Transport:
    import torch
    from torch.distributed import distributed_c10d

    group = distributed_c10d.GroupMember.WORLD
    assert group is not None
    # Private names of every torch since 2.0, guarded by tests on the oldest and the newest.
    try:
        on_cpu = group._get_backend(torch.device("cpu")).name()  # noqa: SLF001
    except RuntimeError:  # the group has nothing for CPU tensors
        on_cpu = ""
    kinds = {device.type for device in group._device_types}  # noqa: SLF001
    is_gloo = on_cpu == "gloo"
    everything = distributed_c10d.get_backend() == "gloo" or kinds == {"cpu"}
    return _Transport(
        generation=generation, waits_with_cpu_tensors=is_gloo, waits_always=is_gloo and everything
    )  # fmt: skip


def _timeout_s() -> float | None:
    """The default group's, as it stands now; None: not known."""
    import torch
    from torch.distributed import distributed_c10d

    group = distributed_c10d.GroupMember.WORLD
    assert group is not None
    options = getattr(group._get_backend(torch.device("cpu")), "options", None)  # noqa: SLF001  see _transport
    timeout = getattr(options, "_timeout", None)
    return None if timeout is None else float(timeout.total_seconds())


COLLECTIVES = CollectiveShim()
"""The one of this process."""
