"""Makes `tqdm.notebook` a text bar in a rank, where no front end listens to widgets.

A hook in front of Python's own importers answers for that one module with the file ``tqdm_text_bar.py``. tqdm itself is
not imported. `tqdm.auto` and `tqdm.autonotebook` find no notebook and choose text by themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_REPLACED = "tqdm.notebook"
_REPLACEMENT = Path(__file__).with_name("tqdm_text_bar.py")


class _TextBarFinder(MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  the protocol's argument
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        return spec_from_file_location(fullname, _REPLACEMENT) if fullname == _REPLACED else None


def install() -> None:
    """From now on, importing `tqdm.notebook` in this process gives text bars. Calling it again changes nothing.

    A `tqdm.notebook` that was imported before is forgotten, so that functions which name it find the text bar; modules
    that have already taken its classes keep them. So it is best called before anything is imported on behalf of users.
    """
    if any(isinstance(finder, _TextBarFinder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _TextBarFinder())
    if sys.modules.pop(_REPLACED, None) is not None and hasattr(package := sys.modules["tqdm"], "notebook"):
        del package.notebook
