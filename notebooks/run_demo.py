"""Execute notebooks headless, each in a real kernel of its own, and print what came of them.

    python notebooks/run_demo.py [NOTEBOOK ...] [--all] [--output-dir FOLDER]

NOTEBOOK: a path, or a name in this folder; none: quickstart. ``--all``: every notebook of this folder.

Exits with 1, naming the cell, when a cell fails that is not tagged ``raises-exception``, when one that is tagged so
does not fail, or when the last cell does not show a dictionary of figures. Each executed notebook is written to FOLDER
in every case.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parent
CELL_TIMEOUT_S = 300


def execute(notebook: nbformat.NotebookNode, folder: Path) -> str | None:
    """Run `notebook` in place, in `folder`. The message of the error that ended it, or None."""
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    try:
        client.execute()
    except CellExecutionError as error:
        return str(error)
    return None


def errors_of(cell: nbformat.NotebookNode) -> list[str]:
    """``name: message`` of each error that `cell` shows: the first and the last line of the message."""
    outputs = [output for output in cell.get("outputs", ()) if output.output_type == "error"]
    texts = [f"{output.ename}: {output.evalue}".strip().splitlines() for output in outputs]
    return [" ... ".join(lines[:1] + lines[1:][-1:]) for lines in texts]


def complaints(notebook: nbformat.NotebookNode) -> list[str]:
    """What is wrong with the executed notebook, one sentence per cell."""
    found = []
    for cell in notebook.cells:
        meant_to_fail = "raises-exception" in cell.metadata.get("tags", ())
        errors = errors_of(cell)
        if errors and not meant_to_fail:
            found.append(f"cell {cell.id!r} shows an unexpected error: {errors[0]}")
        if meant_to_fail and not errors:
            found.append(f"cell {cell.id!r} should show an error and does not")
    return found


def figures(notebook: nbformat.NotebookNode) -> dict[str, object]:
    """The dictionary that the last cell shows. ValueError if it shows none."""
    shown = [o.data["text/plain"] for o in notebook.cells[-1].get("outputs", ()) if o.output_type == "execute_result"]
    values = ast.literal_eval(shown[0]) if shown else None
    if not isinstance(values, dict):
        raise ValueError(f"the last cell, {notebook.cells[-1].id!r}, should show a dictionary of figures")  # noqa: TRY004
    return values


def print_table(rows: dict[str, object]) -> None:
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")


def run(path: Path, output_dir: Path) -> bool:
    """Execute the notebook at `path` and print its table; False, and what is wrong, when something is."""
    notebook = nbformat.read(path, as_version=4)
    started = time.monotonic()
    failure = execute(notebook, path.parent)
    duration_s = time.monotonic() - started

    output_dir.mkdir(parents=True, exist_ok=True)
    executed = output_dir / path.name
    nbformat.write(notebook, executed)
    wrong = [failure] if failure else complaints(notebook)
    rows: dict[str, object] = {}
    if not wrong:
        try:
            rows = figures(notebook)
        except ValueError as error:
            wrong = [str(error)]
    if wrong:
        print(*(f"{path.name}: {sentence}" for sentence in wrong), sep="\n", file=sys.stderr)
        return False
    errors = [error for cell in notebook.cells for error in errors_of(cell)]
    shown = {"exception shown": errors[0]} if errors else {}
    print_table(rows | {"seconds": round(duration_s, 1), **shown, "executed notebook": executed})
    return True


def chosen(names: list[str], *, everything: bool) -> list[Path]:
    """Paths of the notebooks to run. ValueError for one that is not there."""
    if everything:
        return sorted(FOLDER.glob("*.ipynb"))
    paths = []
    for name in names or ["quickstart"]:
        places = [Path(name), FOLDER / name, FOLDER / f"{name}.ipynb"]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            known = ", ".join(path.stem for path in sorted(FOLDER.glob("*.ipynb")))
            raise ValueError(f"there is no notebook {name!r}; in {FOLDER.name} are {known}")
        paths.append(found)
    return paths


def main() -> int:
    parser = argparse.ArgumentParser(description="Execute notebooks and print what came of them.")
    parser.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="path, or name in this folder")
    parser.add_argument("--all", action="store_true", help="every notebook of this folder")
    parser.add_argument("--output-dir", type=Path, default=Path("build", "notebooks"))
    options = parser.parse_args()
    try:
        paths = chosen(options.notebooks, everything=options.all)
    except ValueError as error:
        parser.error(str(error))

    outcomes = []
    for path in paths:
        if len(paths) > 1:
            print(f"==== {path.name}", flush=True)
        outcomes.append(run(path, options.output_dir))
    return int(not all(outcomes))


if __name__ == "__main__":
    sys.exit(main())
