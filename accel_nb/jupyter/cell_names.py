"""Which names of the notebook a cell may read before it has set them itself, and which it may set. Pure.

The cell's statements are followed in their order: a branch counts for what both ways set, a loop as one that runs, and
the body of a function is looked at where the function is first mentioned, since that is where it may be called.
"""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import NamedTuple

_READS = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_GLOBAL"})
_SETS = frozenset({"STORE_NAME", "STORE_GLOBAL"})
_OPEN_ENDED_CALLS = frozenset({"exec", "globals", "locals", "vars"})
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class CellNames(NamedTuple):
    """What one cell does with names of the notebook."""

    needed: frozenset[str]
    """May be read before the cell has set them. Builtins are among them, and names that nobody knows."""
    assigned: frozenset[str]
    """May be set by the cell."""
    open_ended: bool
    """Other names may be set, too: by ``import *``, ``exec``, ``globals()``."""


def names_of(tree: ast.Module) -> CellNames:
    """Of a cell that compiles. What is named only in strings for ``eval`` and its like is not seen."""
    flow = _Flow(frozenset())
    flow.run(tree.body)
    flow.mention_rest()
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    stars = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree))
    return CellNames(
        needed=frozenset(flow.needed),
        assigned=frozenset(flow.ever_assigned),
        open_ended=stars or not calls.isdisjoint(_OPEN_ENDED_CALLS),
    )


class _Flow:
    """One way through statements at the level of the module, or of a class in it."""

    def __init__(self, assigned: Iterable[str]) -> None:
        self.assigned = set(assigned)
        """Set by now, whatever happened."""
        self.ever_assigned: set[str] = set()
        self.needed: set[str] = set()
        self.waiting: dict[str, set[str]] = {}
        """Function or class that was not mentioned yet -> names that its body reads."""

    def run(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._run_one(statement)

    def mention_rest(self) -> None:
        """Functions that nothing mentions may be called later."""
        for name in list(self.waiting):
            self._read(name)

    def _run_one(self, statement: ast.stmt) -> None:  # noqa: C901  one case per kind of statement
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._define_function(statement)
            case ast.ClassDef():
                self._define_class(statement)
            case ast.If():
                self._read_all(statement.test)
                self._branch([statement.body, statement.orelse])
            case ast.For() | ast.AsyncFor():
                self._read_all(statement.iter)
                self._set_targets(statement.target)
                self.run([*statement.body, *statement.orelse])
            case ast.While():
                self._read_all(statement.test)
                self.run([*statement.body, *statement.orelse])
            case ast.With() | ast.AsyncWith():
                for item in statement.items:
                    self._read_all(item.context_expr)
                    self._set_targets(item.optional_vars)
                self.run(statement.body)
            case ast.Try() | ast.TryStar():
                self._try(statement)
            case ast.Match():
                self._match(statement)
            case ast.Import() | ast.ImportFrom():
                names = (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
                self._set(name for name in names if name != "*")
            case _:
                self._run_simple(statement)

    def _run_simple(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign():
                self._read_all(statement.value)
                for target in statement.targets:
                    self._set_targets(target)
            case ast.AugAssign():
                self._read_all(statement.value, *_as_read(statement.target))
                self._set_targets(statement.target)
            case ast.AnnAssign():
                self._read_all(statement.annotation, statement.value)
                if statement.value is not None:
                    self._set_targets(statement.target)
            case ast.Delete():
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        self._read(target.id)
                        self.assigned.discard(target.id)
                    else:
                        self._read_all(target)
            case _:
                self._read_all(*(node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)))

    def _define_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = function.args
        annotated = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        self._read_all(
            *function.decorator_list, *arguments.defaults, *arguments.kw_defaults, function.returns,
            *(argument.annotation for argument in annotated if argument is not None),
        )  # fmt: skip
        reads, sets = _names_in_body(function)
        self._set([function.name])
        self.ever_assigned |= sets
        self.waiting[function.name] = reads
        if function.decorator_list:
            self._read(function.name)  # a decorator may have called it

    def _define_class(self, made: ast.ClassDef) -> None:
        self._read_all(*made.decorator_list, *made.bases, *(keyword.value for keyword in made.keywords))
        body = _Flow(self.assigned)
        body.run(made.body)
        for name in body.needed:
            self._read(name)
        methods = set[str]().union(*body.waiting.values())
        self._set([made.name])
        self.waiting[made.name] = methods
        if made.decorator_list:
            self._read(made.name)

    def _branch(self, ways: Sequence[Sequence[ast.stmt]]) -> None:
        """One of `ways` is gone."""
        flows = []
        for way in ways:
            flow = _Flow(self.assigned)
            flow.waiting = dict(self.waiting)
            flow.run(way)
            flows.append(flow)
        for flow in flows:
            self.needed |= flow.needed
            self.ever_assigned |= flow.ever_assigned
            for name, reads in flow.waiting.items():
                self.waiting.setdefault(name, set()).update(reads)
        goes_on = [flow.assigned for flow, way in zip(flows, ways, strict=True) if not _leaves(way)]
        if goes_on:
            self.assigned = set.intersection(*goes_on)

    def _try(self, statement: ast.Try | ast.TryStar) -> None:
        for handler in statement.handlers:
            self._read_all(handler.type)
        handled = [self._handler_body(handler) for handler in statement.handlers]
        self._branch([[*statement.body, *statement.orelse], *handled])
        self.run(statement.finalbody)

    @staticmethod
    def _handler_body(handler: ast.ExceptHandler) -> list[ast.stmt]:
        if handler.name is None:
            return handler.body
        bound = ast.Assign(targets=[ast.Name(handler.name, ast.Store())], value=ast.Constant(None))
        return [bound, *handler.body, ast.Delete(targets=[ast.Name(handler.name, ast.Del())])]

    def _match(self, statement: ast.Match) -> None:
        self._read_all(statement.subject)
        ways: list[list[ast.stmt]] = [[]]
        for case in statement.cases:
            self._read_all(*(node for node in ast.walk(case.pattern) if isinstance(node, ast.expr)))
            names = [name for node in ast.walk(case.pattern) if (name := _captured_by(node))]
            bound: list[ast.stmt] = [
                ast.Assign(targets=[ast.Name(name, ast.Store())], value=ast.Constant(None)) for name in names
            ]
            guard: list[ast.stmt] = [] if case.guard is None else [ast.Expr(case.guard)]
            ways.append([*bound, *guard, *case.body])
        self._branch(ways)

    # ---- names

    def _set(self, names: Iterable[str]) -> None:
        for name in names:
            self.assigned.add(name)
            self.ever_assigned.add(name)
            self.waiting.pop(name, None)

    def _set_targets(self, target: ast.expr | None) -> None:
        if target is None:
            return
        self._read_all(target)
        names = [node for node in ast.walk(target) if isinstance(node, ast.Name)]
        self._set(node.id for node in names if isinstance(node.ctx, ast.Store))

    def _read_all(self, *expressions: ast.expr | None) -> None:
        for expression in expressions:
            if expression is not None:
                for name in _reads_of(expression, frozenset()):
                    self._read(name)
                self._set(node.target.id for node in ast.walk(expression) if isinstance(node, ast.NamedExpr))

    def _read(self, name: str) -> None:
        if name not in self.assigned:
            self.needed.add(name)
        for other in self.waiting.pop(name, ()):
            self._read(other)


def _reads_of(node: ast.AST, local: frozenset[str]) -> Iterator[str]:
    """Names read by an expression, in about their order; `local` are those that it binds itself."""
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load) and node.id not in local:
            yield node.id
        return
    if isinstance(node, ast.Lambda):
        inner = local | {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                yield from _reads_of(default, local)
        yield from _reads_of(node.body, inner)
        return
    if isinstance(node, _COMPREHENSIONS):
        local = local | {
            name.id
            for generator in node.generators
            for name in ast.walk(generator.target)
            if isinstance(name, ast.Name)
        }
    for child in ast.iter_child_nodes(node):
        yield from _reads_of(child, local)


def _names_in_body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[set[str], set[str]]:
    """Global names that the body of a function at the level of a module, or of a class, reads and sets."""
    module = compile(ast.Module(body=[function], type_ignores=[]), "<cell>", "exec", dont_inherit=True)
    reads: set[str] = set()
    sets: set[str] = set()
    for code in _nested(module):
        own: set[str] = set()  # of the body of a class
        for step in dis.get_instructions(code):
            if step.opname in _READS and step.argval not in own:
                reads.add(step.argval)
            elif step.opname == "STORE_GLOBAL":
                sets.add(step.argval)
            elif step.opname in _SETS:
                own.add(step.argval)
    return reads, sets


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)


def _leaves(way: Sequence[ast.stmt]) -> bool:
    return bool(way) and isinstance(way[-1], ast.Raise | ast.Continue | ast.Break)


def _as_read(target: ast.expr) -> list[ast.expr]:
    """What ``target += 1`` reads."""
    return [ast.Name(target.id, ast.Load())] if isinstance(target, ast.Name) else []


def _captured_by(node: ast.AST) -> str | None:
    match node:
        case ast.MatchAs() | ast.MatchStar():
            return node.name
        case ast.MatchMapping():
            return node.rest
        case _:
            return None
