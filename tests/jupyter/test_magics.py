"""The magics in a real kernel."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.launch.census import Census, wait_until
from tests.notebook_kernel import Executed, NotebookKernel

NO_SHELL = "is for the notebook's shell, which ranks do not have. Nothing was started."
CPU = "%%accelerate --num-processes 2 --device cpu"


@pytest.fixture(scope="module")
def kernel(_session_environment: None) -> Iterator[NotebookKernel]:
    started = NotebookKernel()
    try:
        started.ok("%load_ext accel_nb\nimport os, time, threading\nx = 41\nlock = threading.Lock()")
        yield started
    finally:
        started.shutdown()


def test_the_cells_number_is_the_one_beside_it(kernel: NotebookKernel) -> None:
    kernel.ok("this = len(In)")  # of the cell that follows

    ran = kernel.run(f"{CPU}\nraise ValueError")

    assert number(ran) == f"Cell In[{kernel.value('this')}]"


def number(executed: Executed) -> str:
    found = re.search(r"Cell In\[\d+\]", executed.described())
    assert found, executed.described()
    return found[0]


def refusal(executed: Executed) -> str:
    """What the cell shows, which is one message without frames."""
    assert executed.ename is not None
    shown = "\n".join(executed.traceback)
    assert "accel_nb/" not in shown
    return shown


def test_w05_a_cell_runs_on_every_rank_with_what_it_uses_of_the_notebook(kernel: NotebookKernel) -> None:
    kernel.ok("def plus(n):\n    return x + n")

    ran = kernel.ok(f"{CPU}\nprint('rank', os.environ['RANK'], plus(1))")

    assert "[r0] rank 0 42\n" in ran.stdout
    assert "[r1] rank 1 42\n" in ran.stdout


def test_p09_variables_of_rank_0_come_back(kernel: NotebookKernel) -> None:
    kernel.ok(
        f"{CPU} --out y,made\nclass Made:\n    rank = os.environ['RANK']\nmade = Made()\ny = [x, made.rank]\nz = 1"
    )

    assert kernel.value("[y, made.rank, 'z' in globals()]") == [[41, "0"], "0", False]


def test_p03_a_variable_that_cannot_travel_is_named(kernel: NotebookKernel) -> None:
    shown = refusal(kernel.run(f"{CPU}\nwith lock: pass"))

    assert re.match(
        r"NotPicklable: Cell In\[\d+\] → global 'lock' cannot be sent to the ranks: its type _thread.lock", shown
    )


def test_only_what_the_cell_reads_before_it_sets_it_travels(kernel: NotebookKernel) -> None:
    ran = kernel.ok(f"{CPU}\nlock = 5\ndef f():\n    return lock\nprint(f())")

    assert "] 5\n" in ran.stdout


def test_e01_a_traceback_shows_the_cells_own_lines(kernel: NotebookKernel) -> None:
    ran = kernel.run(f"{CPU}\n\n# a comment\ndef work():\n    raise ValueError('bad batch')\n\nwork()")

    cell = number(ran)
    assert refusal(ran).endswith(
        f"Traceback (most recent call last):\n  {cell}, line 7, in <module>\n    work()\n"
        f"  {cell}, line 5, in work\n    raise ValueError('bad batch')\nValueError: bad batch"
    )


def test_below_another_magic_lines_keep_their_numbers(kernel: NotebookKernel) -> None:
    ran = kernel.run(f"%%time\n{CPU}\nx = 1\nundefined_name")

    assert f"{number(ran)}, line 4, in <module>\n    undefined_name\n" in refusal(ran)


def test_u12_the_last_line_and_displays_of_rank_0_are_shown_in_order(kernel: NotebookKernel) -> None:
    ran = kernel.ok(
        f"{CPU}\nclass Html:\n    def __init__(self, text): self.text = text\n"
        "    def _repr_html_(self): return f'<b>{self.text}</b>'\n"
        "for i in range(3):\n    print('line', i)\n    display(Html(i))\n    time.sleep(0.3)\nHtml('last')"
    )

    assert [shown.data["text/html"] for shown in ran.displays] == ["<b>0</b>", "<b>1</b>", "<b>2</b>", "<b>last</b>"]
    for display, before, after in zip(
        ran.displays, ("line 0", "line 1", "line 2"), ("line 1", "line 2", ""), strict=False
    ):
        shown = "".join(stream.text for stream in ran.streams if stream.time_s <= display.time_s)
        assert before in shown
        assert not after or after not in shown


def test_u12_a_hundred_displays_all_arrive(kernel: NotebookKernel) -> None:
    ran = kernel.ok(f"{CPU}\nfor i in range(100): display(i)")

    assert [shown.data["text/plain"] for shown in ran.displays] == [str(i) for i in range(100)]


def test_u12_other_ranks_displays_are_in_their_logs(kernel: NotebookKernel) -> None:
    ran = kernel.ok(f"{CPU} --background\nrun_of_displays = display('from ' + os.environ['RANK'])")
    kernel.ok("shown_run = _; shown_run.wait(30);")

    assert kernel.value("[shown_run.logs(0).split(), shown_run.logs(1).split()]") == [["'from", "0'"], ["'from", "1'"]]
    assert [shown.data for shown in ran.displays] == [{"text/plain": "'from 0'"}]


def test_u12_figures_of_rank_0_are_shown_where_they_are_plotted(kernel: NotebookKernel) -> None:
    pytest.importorskip("matplotlib")

    ran = kernel.ok(
        f"{CPU}\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()\nprint('between')\nplt.plot([2, 1]);",
        timeout_s=90,
    )

    assert [set(shown.data) for shown in ran.displays] == [{"text/plain", "image/png"}] * 2
    assert "between" in ran.stdout


def test_u12_displays_through_ipython_are_shown_and_updated(kernel: NotebookKernel) -> None:
    ran = kernel.ok(
        f"{CPU}\nfrom IPython.display import Markdown, display\nhandle = display(Markdown('# a'), display_id=True)\n"
        "time.sleep(0.2)\nhandle.update(Markdown('# b'))"
    )

    first, second = ran.displays
    assert (first.data["text/markdown"], second.data["text/markdown"]) == ("# a", "# b")
    assert second.is_update
    assert second.display_id == first.display_id


@pytest.mark.parametrize("last", ["None", "x;", "x = 5", "x ;  # hidden"])
def test_nothing_is_shown_for_nothing(kernel: NotebookKernel, last: str) -> None:
    ran = kernel.ok(f"{CPU}\n{last}")

    assert ran.displays == []
    assert ran.result is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "y = 1\n!nvidia-smi",
            f"line 3: '!nvidia-smi' {NO_SHELL} Run it in a cell of its own, or use subprocess.run(...).",
        ),
        ("\n%time x", f"line 3: '%time x' {NO_SHELL} Run it in a cell of its own."),
        ("files = !ls", f"line 2: 'files = !ls' {NO_SHELL}"),
        ("%%time\nx", f"line 2: '%%time' {NO_SHELL} Put it above %%accelerate, or into a cell of its own."),
        ("name = input('who? ')", "line 2: input() cannot be answered: ranks have no keyboard."),
        ("await something()", "line 2: await outside a function is the notebook's"),
        ("y = [i async for i in z]", "line 2: await outside a function is the notebook's"),
    ],
)
def test_what_only_a_notebook_can_do_is_refused_by_line(kernel: NotebookKernel, body: str, message: str) -> None:
    shown = refusal(kernel.run(f"{CPU}\n{body}"))

    assert re.match(rf"CellRefused: Cell In\[\d+\], {re.escape(message)}", shown), shown


def test_await_inside_of_a_function_is_fine(kernel: NotebookKernel) -> None:
    ran = kernel.ok(
        f"{CPU}\nimport asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 7\nasyncio.run(f())"
    )

    assert [shown.data["text/plain"] for shown in ran.displays] == ["7"]


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("y = (1\n", "line 2\n    y = (1\n        ^\nSyntaxError: '(' was never closed"),
        ("if x:\n  y = 5\n  return 3", "line 4\n    return 3\n    ^\nSyntaxError: 'return' outside function"),
    ],
)
def test_a_syntax_error_is_shown_as_any_cells(kernel: NotebookKernel, body: str, shown: str) -> None:
    told = refusal(kernel.run(f"{CPU}\n{body}"))

    assert re.fullmatch(rf"  Cell In\[\d+\], {re.escape(shown)}", told), told


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--num-procs 2",
            "InvalidArgument: %%accelerate: unrecognized arguments: --num-procs 2. %%accelerate --help tells",
        ),
        ("--num-processes 0", "InvalidArgument: num_processes=0: give a whole number of at least 1"),
        ("--device quantum", "UnknownDevice: device='quantum'"),
        (
            "--num-nodes 2 --num-processes 2 --use-port 4000",
            "InvalidArgument: master_addr='127.0.0.1' with num_nodes=2: 127.0.0.1 is this very machine for each",
        ),
        ("--out 2x", "InvalidArgument: %%accelerate: argument --out: '2x' is no name of a variable."),
        ("--out nothing_sets_it", "CellRefused: --out: Cell In["),
        ("--out x --dry-run --device cpu", "InvalidArgument: %%accelerate: --out is not possible with --dry-run"),
        ("--env 'A=1", 'InvalidArgument: %%accelerate: "--env \'A=1" cannot be taken apart: No closing quotation.'),
    ],
)
def test_options_are_refused_in_one_sentence(kernel: NotebookKernel, line: str, message: str) -> None:
    assert refusal(kernel.run(f"%%accelerate {line}\nx")).startswith(message)


def test_a_variable_that_is_set_only_sometimes_is_missed_at_the_end(kernel: NotebookKernel) -> None:
    ran = kernel.run(f"{CPU} --out maybe\nif x == 0:\n    maybe = 1")

    assert "NoSuchVariable: --out asks for 'maybe', which the cell has not set on rank 0." in refusal(ran)


def test_w02_a_cell_in_the_background_gives_a_run(kernel: NotebookKernel) -> None:
    began = time.monotonic()
    ran = kernel.ok(f"{CPU} --background --out waited\ntime.sleep(1.5)\nprint('done')\nwaited = True")

    assert time.monotonic() - began < 30
    assert re.fullmatch(r"<Run \S+: Cell In\[\d+\] on 2 ranks, \w+>", ran.result or "")
    kernel.ok("handle = _\nhandle.wait(30)\ntime.sleep(0.5)")
    assert kernel.value("[handle.status, waited]") == ["finished", True]
    assert "] done\n" in ran.stdout, "in the cell that started it"


BACK_FROM_BEHIND = """
class OnlyOnRanks:
    def __reduce__(self):
        return (exec, ("raise OSError('not here')",))
odd = OnlyOnRanks()
"""


def test_o05_what_cannot_be_brought_back_from_the_background_is_told_in_its_cell(kernel: NotebookKernel) -> None:
    ran = kernel.ok(f"{CPU} --background --out odd\n{BACK_FROM_BEHIND}")

    kernel.ok("_.wait(30)")
    wait_until(lambda: "odd stayed with the ranks: " in ran.stdout, 20, lambda: ran.text)
    assert "not here" in ran.stdout
    assert kernel.value("'odd' in globals()") is False


def test_w02_accel_stop_ends_what_runs_in_the_background(kernel: NotebookKernel) -> None:
    kernel.ok(f"{CPU} --background\ntime.sleep(600)")

    stopped = kernel.ok("%accel_stop", timeout_s=20)

    assert re.fullmatch(r"Cell In\[\d+\] \(\S+\): stopped after \d+\.\d s\.\n", stopped.stdout), stopped.stdout
    assert kernel.ok("%accel_stop").stdout == "Nothing to stop: no run of this kernel is under way.\n"
    Census(kernel).expect_only_servers()


def test_o14_a_run_is_shown_again_from_its_beginning_and_goes_on(kernel: NotebookKernel) -> None:
    kernel.ok(f"{CPU} --background\nfor i in range(30):\n    print('step', i)\n    time.sleep(0.1)")
    kernel.ok("time.sleep(1)")

    again = kernel.ok("%accel_attach --wait")

    steps = [line for line in again.stdout.splitlines() if "step" in line]
    assert [int(line.split()[-1]) for line in steps if "r0" in line] == list(range(30))
    assert "2 ranks on cpu" in again.stdout


def test_o14_a_run_that_is_over_is_shown_again(kernel: NotebookKernel) -> None:
    ran = kernel.run(f"{CPU}\nprint('before')\nraise ValueError('late')")

    again = kernel.ok(f"%accel_attach '{number(ran)}'")

    assert "] before\n" in again.stdout
    assert "failed: ValueError: late\n" in again.stdout
    assert re.search(r"Cell In\[\d+\] \(\S+\): failed after \d+\.\d s\. Logs: \S+\n$", again.stdout)


def test_o14_a_run_nobody_knows_is_refused(kernel: NotebookKernel) -> None:
    assert "InvalidArgument: 'nobody' is no run of this kernel; the newest are: " in refusal(
        kernel.run("%accel_attach nobody")
    )


def test_accel_plan_says_what_would_start_and_why(kernel: NotebookKernel) -> None:
    told = kernel.ok("%accel_plan --num-processes 2 --device cpu").stdout.splitlines()

    assert told[0].startswith("2 ranks on cpu (asked: 2), gloo,")
    assert "- Settings: num_processes and device from the call, the rest are defaults." in told


def test_u04_accel_doctor_examines(kernel: NotebookKernel) -> None:
    told = kernel.ok("%accel_doctor --no-self-test", timeout_s=90)

    assert "Python" in (told.result or "")


def test_completion_and_help(kernel: NotebookKernel) -> None:
    kernel.ok("line = '%%accelerate --mi'; found = get_ipython().complete('--mi', line, len(line))[1]")

    assert kernel.value("found") == ["--mixed-precision"]
    assert "usage: %%accelerate [-h] [--out NAMES]" in kernel.ok("%%accelerate --help\n1").stdout
    assert "Run this cell on every rank." in str(kernel.value("get_ipython().object_inspect_text('%%accelerate')"))


def test_unloading_takes_the_magics_away(kernel: NotebookKernel) -> None:
    kernel.ok("%unload_ext accel_nb")

    missing = kernel.run("%%accelerate\n1")
    kernel.ok("%load_ext accel_nb")

    assert "Cell magic `%%accelerate` not found" in missing.described()
    assert "1" in kernel.ok(f"{CPU}\nprint(1)").stdout
