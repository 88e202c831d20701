"""``python -m tests.browser.proxy PORT PREFIX [POLICY]``: a reverse proxy as hubs have it, in a process of its own.

It passes on what is asked below PREFIX, websockets included, to the server on PORT of this machine, and answers 404 to
all else. POLICY is put into each answer as its content security policy. The first line it prints is the port that it
listens on; it ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator, Sequence

END_OF_HEAD = b"\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
ENDS = (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError)
"""Of a connection: either side has closed it, or the proxy ends."""
END_S = 20.0


@contextlib.contextmanager
def running_proxy(port: int, prefix: str, policy: str = "") -> Iterator[str]:
    """Gives its address, with the prefix."""
    command = [sys.executable, "-m", "tests.browser.proxy", str(port), prefix, policy]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}{prefix}"
        finally:
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Proxy:
    def __init__(self, port: int, prefix: str, policy: str) -> None:
        self._port = port
        self._prefix = prefix.encode()
        self._policy = policy.encode()

    async def handle(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One request and its answer; what follows an upgrade to a websocket, until either side ends it."""
        with contextlib.suppress(*ENDS), contextlib.closing(writer):
            head = await reader.readuntil(END_OF_HEAD)
            if not head.split(b" ", 2)[1].startswith(self._prefix):
                writer.write(NOT_FOUND)
                return
            answers, asks = await asyncio.open_connection("127.0.0.1", self._port)
            with contextlib.closing(asks):
                asks.write(_closing(head))
                asking = asyncio.create_task(_pass_on(reader, asks))
                writer.write(self._with_policy(await answers.readuntil(END_OF_HEAD)))
                await _pass_on(answers, writer)
                asking.cancel()

    def _with_policy(self, head: bytes) -> bytes:
        if not self._policy:
            return head
        return _with_header(head, b"Content-Security-Policy", self._policy)


async def _pass_on(reader: StreamReader, writer: StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


def _closing(head: bytes) -> bytes:
    """A request after which the connection is closed, so that the next one is looked at, too."""
    return head if b"\r\nupgrade:" in head.lower() else _with_header(head, b"Connection", b"close")


def _with_header(head: bytes, name: bytes, value: bytes) -> bytes:
    first, *headers = head.removesuffix(END_OF_HEAD).split(b"\r\n")
    others = [header for header in headers if not header.lower().startswith(name.lower() + b":")]
    return b"\r\n".join([first, *others, name + b": " + value]) + END_OF_HEAD


async def serve(arguments: Sequence[str]) -> None:
    port, prefix, policy = arguments
    server = await asyncio.start_server(Proxy(int(port), prefix, policy).handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
