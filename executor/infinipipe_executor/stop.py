"""Stopping on SIGTERM: the signal of a scheduler that takes the machines back.

Before training, a rank has nothing to lose and ends at once. From then on the first signal is a request, which the
ranks agree on before their next step: the flag travels with what they compare there anyway, and through the store of
the job to those that still wait for a plan. A thread takes the signal, so that a rank which waits inside a collective
hears it, too. A second signal ends the rank at once, and so does the first one where another rank has failed: then
torchrun clears up, and there is no step left to agree on.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from typing import NoReturn

from torch._C._distributed_c10d import Store

from infinipipe_executor.errors import ExecutorError

EXIT_STOPPED = 75
"""Exit code of a rank that was told to end (EX_TEMPFAIL: start it again, and it goes on)."""

# A launcher passes on a signal that a scheduler has sent to every process already: within this time it is the same one.
SAME_SIGNAL_S = 1.0

_STOP, _FAILED = "infinipipe/stop", "infinipipe/failed"


class StopRequestedError(ExecutorError):
    """A wait was given up because a rank was told to end."""


class StopSignal:
    """Whether the run was told to end; without ``install`` it never is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_requested = False
        self._is_deferred = False
        self._first_s = 0.0
        self._farewell = "ended by SIGTERM before the first step: there was nothing to save"
        self._store: Store | None = None

    def install(self) -> None:
        """Take SIGTERM from now on; call it in the main thread."""
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(receiver,), name="stop-signal", daemon=True).start()

    def defer(self, store: Store | None = None) -> None:
        """From now on there is something to lose: the first signal is a request.

        Args:
            store: Shared by the ranks of this start of the job; tells those that wait for a plan.
        """
        with self._lock:
            self._is_deferred = True
            self._farewell = "ended at once by a second SIGTERM: what was not saved yet is lost"
            self._store = store

    def end_at_once(self) -> None:
        """From now on there is nothing left to save: a signal, one that has come already included, ends this rank."""
        with self._lock:
            self._is_deferred = False
            self._farewell = ""
            if self._is_requested:
                self._leave()

    def tell_failed(self) -> None:
        """Tell the other ranks that this one has failed and will agree on nothing any more."""
        if self._store is not None:
            with contextlib.suppress(RuntimeError):  # the store went first
                self._store.set(_FAILED, "failed")

    @property
    def is_requested(self) -> bool:
        """Whether this rank was told to end."""
        return self._is_requested

    def check(self) -> None:
        """Give up a wait if any rank was told to end.

        Raises:
            StopRequestedError: If one was.
        """
        if self._is_requested or (self._store is not None and self._store.check([_STOP])):
            raise StopRequestedError("a rank was told to end (SIGTERM)")

    def _listen(self, receiver: socket.socket) -> None:
        while True:
            for number in receiver.recv(64):
                if number == signal.SIGTERM:
                    self._take()

    def _take(self) -> None:
        with self._lock:
            now_s = time.monotonic()
            if self._has_failed():
                self._farewell, self._is_deferred = "", False
            if not self._is_deferred or (self._is_requested and now_s - self._first_s > SAME_SIGNAL_S):
                self._leave()
            if self._is_requested:
                return
            self._is_requested, self._first_s = True, now_s
            store = self._store
        if store is not None:
            with contextlib.suppress(RuntimeError):  # the store went first; this rank knows all the same
                store.set(_STOP, "requested")

    def _has_failed(self) -> bool:
        with contextlib.suppress(RuntimeError):  # the store is gone: nobody can tell
            return self._store is not None and self._store.check([_FAILED])
        return False

    def _leave(self) -> NoReturn:
        if self._farewell and os.environ.get("RANK", "0") == "0":
            os.write(sys.stdout.fileno(), f"{self._farewell}\n".encode())  # the main thread may hold the lock of print
        os._exit(EXIT_STOPPED)
