"""Failure: how a rank ends when something went wrong, so that the first cause is what the user reads.

A cause goes to stderr as one line, once a machine even when every rank meets it, and into the file from which torchrun
takes the cause that it prints last. A rank that only notices that a peer is gone is no cause: it waits for a moment, in
which torchrun ends it, and speaks up only when nobody else did; then it is the best cause there is.
"""

import hashlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from infinipipe_executor.errors import EXIT_FAILURE, EXIT_USAGE, ConfigError, ExecutorError, LayoutError, PeerLostError
from infinipipe_executor.stop import EXIT_STOPPED, StopSignal

# The time that torchrun has to notice the rank that failed first.
PEER_LOST_GRACE_S = 2.0


def exit_failed(error: BaseException, stop: StopSignal) -> NoReturn:
    """Report an error and end this process at once.

    Threads and collectives that wait for lost peers would keep an ordinary exit from ending, or turn it into an abort.

    Args:
        error: Why the rank ends.
        stop: How this rank hears of SIGTERM, by which torchrun ends the ranks that outlived the first one.
    """
    stop.tell_failed()
    if isinstance(error, PeerLostError):
        stop.end_at_once()
        if _is_timeout(error):
            traceback.print_exception(error)
        time.sleep(PEER_LOST_GRACE_S)
        _leave_cause(f"error: {error}")
        _say(f"error: {error}")
    elif isinstance(error, ExecutorError):
        _leave_cause(f"error: {error}")
        _say(f"error: {error}")
    else:
        doing = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
        sentence = f"error: rank {os.environ.get('RANK', '0')} failed: {type(error).__name__}: {error}{doing}"
        text = "".join(traceback.format_exception(error)) + sentence
        _leave_cause(text)
        _say(text)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_USAGE if isinstance(error, ConfigError | LayoutError) else EXIT_FAILURE)


def exit_ended(*, is_done: bool) -> NoReturn:
    """End this process at once after a run that came to its end, or was told to; nothing is left to wait for.

    A library that still tries to reach somebody would keep an ordinary exit from ending.
    """
    if not is_done:
        _leave_cause("ended by SIGTERM")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if is_done else EXIT_STOPPED)


def _is_timeout(error: PeerLostError) -> bool:
    """Tell a silent peer from a dead one: where this rank waited for a silent one is worth showing."""
    return "timed out" in f"{error} {error.__cause__}".lower()


def _error_file() -> Path | None:
    name = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return Path(name) if name else None


def _leave_cause(text: str) -> None:
    """Write the file from which torchrun takes the cause (the format of torch.distributed.elastic)."""
    error_file = _error_file()
    if error_file is None:
        return
    extra = {"timestamp": str(int(time.time())), "py_callstack": text}
    error_file.parent.mkdir(parents=True, exist_ok=True)
    error_file.write_text(json.dumps({"message": {"message": text.strip().splitlines()[-1], "extraInfo": extra}}))


def _say(text: str) -> None:
    """Print to stderr unless another rank of this machine has said the same."""
    error_file = _error_file()
    if error_file is not None:
        folder = error_file.parent.parent  # <attempt>/<rank>/error.json
        said = folder / f"said-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        try:
            said.touch(exist_ok=False)
        except FileExistsError:
            return
        except OSError:  # a folder that cannot be written: rather twice than never
            pass
    print(text, file=sys.stderr, flush=True)  # noqa: T201  # the user's line, not a log record
