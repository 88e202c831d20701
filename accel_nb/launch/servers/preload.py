"""Which server a run starts from: the plain one, or a template that already holds what the function imports.

After a run its ranks report the third-party modules they imported. The next server, made in the background, imports
them beforehand; once it is ready it takes over. A function whose modules are still being imported there waits for it:
its own ranks would need as long.
"""

from __future__ import annotations

import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from ...errors import ServerFailed
from ...protocol import environment
from .warm_client import POOL, ServerKey, ServerPool, WarmServer

LONGEST_WAIT_S = 60.0
_WAIT_STEP_S = 0.05
_VOLATILE = frozenset({"CUDA_VISIBLE_DEVICES", "COLUMNS", "LINES", "PWD", "OLDPWD", "SHLVL", "_"})
"""Not read by imports, or different at every start without a meaning."""


class Preload:
    """What this process's runs have taught, and the servers that follow from it. Any thread may call."""

    def __init__(self, pool: ServerPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._needs: dict[str, tuple[str, ...]] = {}
        """Function name -> modules its ranks imported beyond their server's, in the order of import."""
        self._slow: set[ServerKey] = set()
        """Templates that nobody waits for any more; they are used once they are ready."""
        self._struck: dict[str, str] = {}
        self._modules: tuple[str, ...] = ()
        """What the newest template holds or is importing."""

    @property
    def struck(self) -> dict[str, str]:
        """Module -> why no server may import it beforehand."""
        return dict(self._struck)

    def server_for(
        self, function_name: str, variables: Mapping[str, str], cancelled: Callable[[], bool] = lambda: False
    ) -> WarmServer:
        """The server to start ranks of `function_name` from. May wait for a template, until `cancelled`.

        Raises ServerFailed when the plain server cannot be started.
        """
        plain = ServerKey.for_run(variables)
        try:
            template_server = self._template(plain, variables)
            if template_server is not None and self._ready(template_server, function_name, cancelled):
                # The template holds all that the plain server holds.
                self._pool.stop(plain)
                return template_server
        except ServerFailed as error:
            self._give_up(str(error))
        return self._pool.get(plain, variables)

    def next_server_for(self, function_name: str, variables: Mapping[str, str]) -> WarmServer:
        """The server that ranks of `function_name` would start from next, be it that they wait for it. Does not wait.

        Raises ServerFailed.
        """
        plain = ServerKey.for_run(variables)
        template_server = self._template(plain, variables)
        if template_server is not None:
            ready = template_server.poll_ready(0.0)
            if (ready is not None and not ready.struck) or (
                ready is None and self._is_waited_for(template_server, function_name)
            ):
                return template_server
        return self._pool.get(plain, variables)

    def learn(
        self, function_name: str, modules: Iterable[str], variables: Mapping[str, str], *, num_ranks: int
    ) -> None:
        """A run of `function_name` has ended; its `num_ranks` ranks had imported `modules`.

        Starts a template when that is news, which forks as many ranks ahead.
        """
        modules = tuple(modules)
        with self._lock:
            known = self._needs.get(function_name, ())
            self._needs[function_name] = known + tuple(name for name in modules if name not in known)
            news = [name for name in modules if name not in self._modules and name not in self._struck]
            if not news:
                return
            self._modules += tuple(news)
        server = self._template(ServerKey.for_run(variables), variables)
        if server is not None:
            server.fork_ahead(num_ranks)

    def _template(self, plain: ServerKey, variables: Mapping[str, str]) -> WarmServer | None:
        """The template for these variables, started when there is none; None when nothing is to be preloaded."""
        if not self._modules:
            return None
        return self._pool.get(_template_key(plain, variables, self._modules), variables)

    def _ready(self, server: WarmServer, function_name: str, cancelled: Callable[[], bool]) -> bool:
        """Whether the template can be used now; waits only for a function whose modules it is importing, and not long:
        an import may hang in the server as it may anywhere.
        """
        wait = self._is_waited_for(server, function_name)
        give_up_s = time.monotonic() + LONGEST_WAIT_S
        while (ready := server.poll_ready(_WAIT_STEP_S if wait else 0.0)) is None:
            if time.monotonic() >= give_up_s:
                self._slow.add(server.key)
            if not wait or cancelled() or server.key in self._slow:
                return False
        if not ready.struck:
            return True
        with self._lock:
            self._struck |= ready.struck
            self._modules = tuple(name for name in self._modules if name not in self._struck)
        self._pool.stop(server.key)
        return False

    def _is_waited_for(self, server: WarmServer, function_name: str) -> bool:
        needed = set(self._needs.get(function_name, ()))
        return not needed.isdisjoint(server.key.preload) and server.key not in self._slow

    def _give_up(self, reason: str) -> None:
        """A template died while importing: none of its modules is tried again in this kernel."""
        with self._lock:
            self._struck |= dict.fromkeys(self._modules, reason)
            self._modules = ()


def _template_key(plain: ServerKey, variables: Mapping[str, str], modules: tuple[str, ...]) -> ServerKey:
    """Imported packages may read any variable and any file of site-packages: both are part of a template's key."""
    everything = {
        name: value
        for name, value in variables.items()
        if name not in _VOLATILE and not environment.is_foreign_launcher_variable(name)
    }
    sites = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    changed_ns = max(Path(site).stat().st_mtime_ns for site in sites)
    return replace(plain, variables=tuple(sorted(everything.items())), sites_time_ns=changed_ns, preload=modules)


PRELOAD = Preload(POOL)
"""One per process, beside the pool of servers."""
