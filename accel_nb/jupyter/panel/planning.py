"""Plans for the panel, while somebody turns its knobs: what a launch with these choices would do."""

from __future__ import annotations

import threading
from collections.abc import Callable

from msgspec import convert
from msgspec.structs import asdict, replace

from ...errors import AccelNbError, ConfigError
from ...launch.planning.planner import plan_line
from ...launch.run import plan_for
from ...launch.settings.settings_file import existing_file
from ...protocol.panel import AskPlan, Choice, PanelNews, PlanAnswer, SettingsFile
from ...protocol.plan import LaunchPlan, LaunchRequest
from ..asked import asked_by_call, kept, naming_the_file

MakePlan = Callable[[LaunchRequest], LaunchPlan]


class Planning:
    """Any thread may ask. Of the questions of one page that wait only the newest is answered: the first plan may take a
    minute, in which the server imports torch.
    """

    def __init__(self, send: Callable[[PanelNews], None], make_plan: MakePlan = plan_for) -> None:
        self._send = send
        self._make_plan = make_plan
        self._lock = threading.Lock()
        self._asked: dict[str, AskPlan] = {}
        """By page, whoever has waited longest first."""
        self._is_working = False

    def ask(self, question: AskPlan, page: str) -> None:
        with self._lock:
            self._asked[page] = question
            if self._is_working:
                return
            self._is_working = True
        threading.Thread(target=self._work, name="accel_nb plan", daemon=True).start()

    def _work(self) -> None:
        while (question := self._next()) is not None:
            self._send(self._answered(question))

    def _next(self) -> AskPlan | None:
        with self._lock:
            self._is_working = bool(self._asked)
            return self._asked.pop(next(iter(self._asked))) if self._asked else None

    def _answered(self, question: AskPlan) -> PlanAnswer:
        try:
            request = request_of(question.choice)
            with naming_the_file(request):
                plan = self._make_plan(request)
        except AccelNbError as error:
            return PlanAnswer(number=question.number, problem=str(error))
        except Exception as error:  # noqa: BLE001  probing asks systems and drivers; the page is told, and may ask again
            return PlanAnswer(number=question.number, problem=f"No plan could be made: {error!r}.")
        return PlanAnswer(number=question.number, line=plan_line(plan), reasons=plan.reasons)


def request_of(choice: Choice) -> LaunchRequest:
    """What ``%%accelerate`` with these choices asks for. Raises ConfigError."""
    return replace(asked_by_call(asdict(choice)), function_name="%%accelerate")


def settings_file() -> SettingsFile | None:
    """The one that counts for a launch from this kernel, read now."""
    path = existing_file()
    if path is None:
        return None
    try:
        fields = kept(path).settings.fields
    except ConfigError as error:
        return SettingsFile(path=str(path), problem=str(error))
    choice = {name: fields.get(name) for name in Choice.__struct_fields__}
    return SettingsFile(path=str(path), choice=convert(choice, Choice))
