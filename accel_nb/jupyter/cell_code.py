"""Cell text -> a function for the ranks, which runs the cell there as a notebook would here.

    text ──> syntax tree ──> compiled cell ─┐
                └─> names it needs ─────────┴─> carrier: a function that refers to the cell and to those variables

The carrier is an ordinary function of the notebook, so that the launcher's packing takes along what it refers to, by
value, and names the variable that cannot travel.
"""

from __future__ import annotations

import ast
import linecache
import types
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from ..errors import InvalidArgument
from ..launch.rank import cell as rank_cell
from ..launch.rank.cell import CellCode, run_cell
from .cell_names import CellNames, names_of

_SHELL_CALLS = frozenset({"system", "getoutput", "run_line_magic", "run_cell_magic", "set_next_input"})
"""What IPython turns lines of its own syntax into calls of (``core/inputtransformer2.py``, 8.0 to 9.18)."""


class CellRefused(InvalidArgument):
    """The cell holds what a rank cannot do. Nothing was started."""


class CellSyntaxError(InvalidArgument):
    """The cell is not Python. Shown as any cell's: the place, the line, a mark below it.

    No SyntaxError itself: those IPython shows in a way of its own, with all frames of the magic.
    """

    def __init__(self, place: str, text: str, column: int, problem: str) -> None:
        """`column` counts the characters of `text` before the place."""
        super().__init__(f"{problem} ({place})")
        marked = [f"    {text.strip()}", f"    {' ' * max(0, column - len(text) + len(text.lstrip()))}^"]
        self._lines = [f"  {place}", *(marked if text.strip() else []), f"SyntaxError: {problem}"]

    def _render_traceback_(self) -> list[str]:
        """A protocol of IPython's."""
        return self._lines


class _Compiler(Protocol):
    """What we need of `IPython.core.compilerop.CachingCompiler`, alike in 8.x and 9.x."""

    flags: int

    def cache(self, transformed_code: str, number: int, raw_code: str) -> str: ...


class _History(Protocol):
    input_hist_raw: list[str]
    """By number of the cell, as typed."""


class Shell(Protocol):
    """What we need of IPython's InteractiveShell, alike in 8.x and 9.x."""

    compile: _Compiler
    history_manager: _History
    user_ns: dict[str, object]
    user_ns_hidden: dict[str, object]
    execution_count: int

    def transform_cell(self, raw_cell: str) -> str: ...


class CellFunction(NamedTuple):
    function: Callable[[], dict[str, object]]
    label: str
    """``Cell In[7]``."""
    names: CellNames


def cell_function(
    shell: Shell,
    line: str,
    text: str,
    out: Iterable[str] = (),
    *,
    on_ranks: frozenset[str] = frozenset(),
    push: tuple[str, ...] = (),
) -> CellFunction:
    """The function that runs the cell `text`, which stood below ``%%accelerate`` with `line`, on a rank.

    It gives the values of the variables `out`, and takes the notebook's variables along that it needs: but for those
    `on_ranks`, which ranks have, and with those to `push`. In the cell's own thread.
    Raises CellRefused for what ranks cannot do, CellSyntaxError, and CellRefused for an `out` that is never set.
    """
    source = _Source.of(shell, line, text)
    tree = _parsed(shell, source)
    _refuse_foreign_syntax(tree, source)
    names = names_of(tree)
    out = tuple(out)
    known = names.assigned | shell.user_ns.keys() | on_ranks
    unset = [name for name in out if name not in known and not names.open_ended]
    if unset:
        raise CellRefused(f"--out: {source.label} sets no variable {unset[0]!r}. Nothing was started.")
    cell = _compiled(shell, tree, source, out)
    unknown = [name for name in push if name not in shell.user_ns]
    if unknown:
        raise CellRefused(f"--push: the notebook has no variable {unknown[0]!r}. Nothing was started.")
    wanted = ((names.needed | {name for name in out if name not in names.assigned}) - on_ranks) & shell.user_ns.keys()
    taken = sorted({name for name in wanted if not _is_the_shells(shell, name)} | set(push))
    return CellFunction(_carrier(cell, source.label, taken, shell.user_ns, _attributes(tree)), source.label, names)


class _Source(NamedTuple):
    """A cell's text and where it stands."""

    label: str
    file: str
    """The name under which IPython knows the cell."""
    body: str
    """The text in Python's own syntax, behind as many empty lines as stand above it."""
    lines: list[str]
    """Of the whole cell, as the user wrote it."""

    @classmethod
    def of(cls, shell: Shell, line: str, text: str) -> _Source:
        number, raw = _whole_cell(shell, line, text)
        above = raw[: len(raw.rstrip()) - len(text.rstrip())].count("\n")
        # IPython leaves out the empty lines at the beginning of what it transforms.
        above += text[: len(text) - len(text.lstrip())].count("\n")
        body = "\n" * above + shell.transform_cell(text)
        file = shell.compile.cache(body, number, raw_code=raw)
        # What the cell looks like to its author, not what it was turned into. No time: `checkcache` keeps it.
        lines = raw.splitlines(keepends=True)
        linecache.cache[file] = (len(raw), None, lines, file)
        return cls(f"Cell In[{number}]", file, body, lines)

    def at(self, line: int) -> str:
        return f"{self.label}, line {line}"

    def text_of(self, line: int) -> str:
        return self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""


def _whole_cell(shell: Shell, line: str, text: str) -> tuple[int, str]:
    """The number of the cell that runs now, and its text from the first line on.

    `execution_count` is that of the next cell already, since IPython 9. A cell that leaves no history has no number.
    """
    history = shell.history_manager.input_hist_raw
    if history and text.strip() and history[-1].rstrip().endswith(text.rstrip()):
        return len(history) - 1, history[-1]
    return shell.execution_count, f"%%accelerate {line}\n{text}"


def _parsed(shell: Shell, source: _Source) -> ast.Module:
    try:
        tree = ast.parse(source.body, source.file)
        compile(
            tree, source.file, "exec", flags=shell.compile.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
    except SyntaxError as error:
        line = error.lineno or 1
        text = source.lines[line - 1].rstrip() if line <= len(source.lines) else (error.text or "").rstrip()
        raise CellSyntaxError(source.at(line), text, (error.offset or 1) - 1, error.msg) from None
    return tree


def _refuse_foreign_syntax(tree: ast.Module, source: _Source) -> None:
    """Lines that only a notebook's shell understands, and what only a notebook's front end can do."""
    for line, node in _outside_functions(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=attribute)):
                if attribute in _SHELL_CALLS:
                    raise CellRefused(_shell_line(source, line))
            case ast.Call(func=ast.Name(id="input")):
                what = "input() cannot be answered: ranks have no keyboard"
                raise CellRefused(f"{source.at(line)}: {what}. Nothing was started. Ask in a cell of its own.")
            case ast.Await() | ast.AsyncFor() | ast.AsyncWith() | ast.comprehension(is_async=1):
                what = "await outside a function is the notebook's, whose event loop ranks do not have"
                remedy = "Put it into an async function, and call asyncio.run(...)."
                raise CellRefused(f"{source.at(line)}: {what}. Nothing was started. {remedy}")


def _shell_line(source: _Source, line: int) -> str:
    shown = source.text_of(line)
    remedy = "Run it in a cell of its own, or use subprocess.run(...)."
    if shown.startswith("%%"):
        remedy = "Put it above %%accelerate, or into a cell of its own."
    elif not shown.startswith("!"):
        remedy = "Run it in a cell of its own."
    what = f"{shown!r} is for the notebook's shell, which ranks do not have"
    return f"{source.at(line)}: {what}. Nothing was started. {remedy}"


def _outside_functions(node: ast.AST, line: int = 1, *, inside: bool = False) -> Iterator[tuple[int, ast.AST]]:
    """All nodes with their lines; of functions not what is only right in them."""
    for child in ast.iter_child_nodes(node):
        child_line = getattr(child, "lineno", line)
        is_async = isinstance(child, ast.Await | ast.AsyncFor | ast.AsyncWith) or getattr(child, "is_async", False)
        if not (inside and is_async):
            yield child_line, child
        in_function = inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _outside_functions(child, child_line, inside=in_function)


def _compiled(shell: Shell, tree: ast.Module, source: _Source, out: tuple[str, ...]) -> CellCode:
    flags = shell.compile.flags
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or _ends_quietly(last, source):
        return CellCode(_code(tree, source, "exec", flags), None, out)
    body = _code(ast.Module(body=tree.body[:-1], type_ignores=[]), source, "exec", flags)
    return CellCode(body, _code(ast.Expression(last.value), source, "eval", flags | _future(body)), out)


def _code(tree: ast.Module | ast.Expression, source: _Source, mode: str, flags: int) -> types.CodeType:
    code = compile(tree, source.file, mode, flags=flags, dont_inherit=True)
    assert isinstance(code, types.CodeType)
    return code


def _future(code: types.CodeType) -> int:
    """The flags of ``from __future__`` that `code` was compiled with."""
    import __future__

    features = (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
    return sum({flag for flag in features if code.co_flags & flag})


def _ends_quietly(last: ast.Expr, source: _Source) -> bool:
    """A semicolon behind the last expression hides its value, as in any cell."""
    lines = source.body.splitlines(keepends=True)[(last.end_lineno or 1) - 1 :]
    rest = lines[0].encode()[last.end_col_offset or 0 :].decode() if lines else ""
    return rest.lstrip().startswith(";")


def _attributes(tree: ast.Module) -> tuple[str, ...]:
    return tuple(sorted({node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}))


def _is_the_shells(shell: Shell, name: str) -> bool:
    """Whether `name` is IPython's, or Python's own, as long as the user has given it no other value."""
    value = shell.user_ns[name]
    if name.startswith("__") or name in ("In", "Out", "_", "_i"):
        return True
    if name == "display":
        return getattr(value, "__module__", "") == "IPython.core.display_functions"
    return name in shell.user_ns_hidden and shell.user_ns_hidden[name] is value


def _carrier(
    cell: CellCode, label: str, names: list[str], namespace: dict[str, object], attributes: tuple[str, ...]
) -> Callable[[], dict[str, object]]:
    """A function with `namespace` as its globals, of which it mentions `names`, that runs `cell` where it is called.

    `attributes` are what the cell takes of objects: cloudpickle looks at them for submodules to import.
    """
    mentioned = "".join(f"{name}, " for name in names)
    body = f"    def carrier(): return run(cell, (lambda: ({mentioned})).__globals__)"
    maker: dict[str, Callable[..., types.FunctionType]] = {}
    text = f"def make(run, cell):\n{body}\n    return carrier"
    exec(compile(text, rank_cell.__file__, "exec"), maker)  # noqa: S102  our own text; its frames are the launcher's
    made = maker["make"](run_cell, cell)
    code = made.__code__.replace(co_names=tuple(dict.fromkeys((*made.__code__.co_names, *attributes))), co_name=label)
    carrier = types.FunctionType(code, namespace, label, None, made.__closure__)
    carrier.__qualname__ = label
    return carrier
