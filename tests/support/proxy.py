"""A TCP proxy that can be slow, or silent on the connections that exist."""

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards connections from a port of the loopback interface to an endpoint.

    Attributes:
        endpoint: `127.0.0.1:port`, where it listens.
        delay: how long each piece of data is held back, in seconds.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.delay = 0.0
        self._connections: list[_Connection] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def freeze(self) -> None:
        """Say nothing any more on the connections that exist; new ones are served."""
        for connection in self._connections:
            connection.frozen.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            connection = _Connection(client, server)
            self._connections.append(connection)
            for source, sink in ((client, server), (server, client)):
                threading.Thread(
                    target=self._forward, args=(connection, source, sink), daemon=True
                ).start()

    def _forward(
        self, connection: "_Connection", source: socket.socket, sink: socket.socket
    ) -> None:
        try:
            while data := source.recv(65_536):
                time.sleep(self.delay)
                while connection.frozen.is_set():
                    if connection.closed.wait(0.1):
                        return
                sink.sendall(data)
        except OSError:
            pass  # either end went away
        if not connection.frozen.is_set():
            connection.close()


class _Connection:
    """The two halves of one connection."""

    def __init__(self, *sockets: socket.socket) -> None:
        self._sockets = sockets
        self.frozen = threading.Event()
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()
        for each in self._sockets:
            with contextlib.suppress(OSError):  # closed before
                each.shutdown(socket.SHUT_RDWR)
            each.close()
