"""O06: `tqdm.notebook`, imported by the user, is a text bar in a rank."""

from __future__ import annotations

import pytest

from tests.launch.output_events import events_of, final_rows_of, lines_of

INSTALL = "from accel_nb.launch.output import tqdm_notebook; tqdm_notebook.install(); tqdm_notebook.install()\n"


@pytest.mark.parametrize(
    "loop",
    [
        "from tqdm.notebook import tqdm\nfor _ in tqdm(range(30)): pass",
        "from tqdm.notebook import trange\nfor _ in trange(30, disable=None, ncols='50%', display=True): pass",
        "import tqdm.notebook\nfor _ in tqdm.notebook.tnrange(30): pass",
        (
            "import warnings; warnings.simplefilter('ignore')\n"
            "from tqdm import tqdm_notebook\nfor _ in tqdm_notebook(range(30)): pass"
        ),
        "from tqdm.auto import tqdm\nfor _ in tqdm(range(30)): pass",
        (
            "import warnings; warnings.simplefilter('error')\n"
            "from tqdm.autonotebook import tqdm\nfor _ in tqdm(range(30)): pass"
        ),
        "import ipykernel.zmqshell\nfrom tqdm.auto import tqdm\nfor _ in tqdm(range(30)): pass",
        (
            "from tqdm.notebook import tqdm\nbar = tqdm(total=30)\n"
            "bar.update(30)\nbar.display(bar_style='success')\nbar.close()"
        ),
    ],
    ids=["tqdm", "trange", "tnrange", "old name", "auto", "autonotebook", "auto with a kernel imported", "display"],
)
def test_o06_notebook_bars_are_text(loop: str) -> None:
    events = events_of(INSTALL + loop)

    assert [(row.n, row.total) for row in final_rows_of(events)] == [(30, 30)]
    assert lines_of(events) == []


def test_installing_imports_no_tqdm() -> None:
    events = events_of(INSTALL + "import sys; print('tqdm' in sys.modules, 'ipywidgets' in sys.modules)")

    assert lines_of(events) == ["False False"]


def test_a_widget_bar_that_was_imported_before_is_replaced_for_those_who_name_it() -> None:
    code = (
        "import tqdm.notebook, pickle\npickled = pickle.dumps(tqdm.notebook.tqdm)\n"
        + INSTALL
        + "bar = pickle.loads(pickled)\n"
        "print(bar.__module__, bar.__mro__[1].__module__)\nfrom tqdm import notebook\nprint(notebook.tqdm is bar)"
    )

    assert lines_of(events_of(code)) == ["tqdm.notebook tqdm.std", "True"]
