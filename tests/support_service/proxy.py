"""A network that can be cut: a proxy on loopback between a client and a service."""

import contextlib
import selectors
import socket
import threading
from typing import Self


class CutProxy:
    """Forwards TCP connections to an address until it is told to swallow everything.

    While it is cut, connections stay open and new ones are accepted, and nothing comes through either way, as where a
    firewall drops packets: nobody is told, only who asks for an answer finds out.

    Args:
        target: HOST:PORT to forward to.

    Attributes:
        address: HOST:PORT it listens on.
        attempts_while_cut: Connections that were opened while it was cut.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._is_cut = threading.Event()
        self._is_closed = threading.Event()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._swallowed: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.attempts_while_cut = 0
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Let nothing through any longer."""
        self._is_cut.set()

    def heal(self) -> None:
        """Let connections through again; those from before are reset, as their state is lost on the way."""
        with self._lock:
            for one in (*self._peers, *self._swallowed):
                self._drop(one)
            self._peers.clear()
            self._swallowed.clear()
            self._is_cut.clear()

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join(10)
        for one in (*self._peers, *self._swallowed, self._listener):
            one.close()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            if self._is_cut.is_set():
                self._accept_and_forget()
                self._is_closed.wait(0.02)
                continue
            for key, _ in self._selector.select(0.05):
                with self._lock, contextlib.suppress(KeyError):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._peers:
                        self._forward(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._is_cut.is_set():
            self._swallowed.append(client)
            self.attempts_while_cut += 1
            return
        try:
            server = socket.create_connection(self._target, 5)
        except OSError:
            client.close()
            return
        for one, other in ((client, server), (server, client)):
            self._peers[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _accept_and_forget(self) -> None:
        self._listener.settimeout(0)
        with self._lock, contextlib.suppress(BlockingIOError):
            while True:
                client, _ = self._listener.accept()
                self._swallowed.append(client)
                self.attempts_while_cut += 1
        self._listener.settimeout(None)

    def _forward(self, source: socket.socket) -> None:
        if self._is_cut.is_set():
            return
        target = self._peers[source]
        try:
            content = source.recv(65_536)
            if content:
                target.sendall(content)
                return
        except OSError:
            pass
        for one in (source, target):
            self._peers.pop(one, None)
            self._drop(one)

    def _drop(self, one: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(one)
        one.close()
