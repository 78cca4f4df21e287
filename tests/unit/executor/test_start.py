"""Ranks come together at their own pace, and what is wrong is said before the data are read."""

import logging
import threading
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from infinipipe_executor import run, start
from infinipipe_executor.config import load_config
from infinipipe_executor.errors import ConfigError, LayoutError, PeerLostError
from infinipipe_executor.start import await_all
from infinipipe_executor.stop import StopSignal
from support_e2e.runs import write_run


def test_ranks_wait_for_the_last_one_and_say_whom_they_wait_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "FIRST_PROGRESS_S", 0.05)
    store, told = HashStore(), threading.Event()

    class Tell(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert record.levelno == logging.INFO
            told.set()

    start.logger.addHandler(handler := Tell())
    try:
        with caplog.at_level(logging.INFO):
            first = threading.Thread(target=await_all, args=(store, 0, 3, 60.0))
            first.start()
            assert told.wait(30)
            second = threading.Thread(target=await_all, args=(store, 1, 3, 60.0))
            second.start()
            await_all(store, 2, 3, 60.0)
            for thread in (first, second):
                thread.join(30)
                assert not thread.is_alive()
    finally:
        start.logger.removeHandler(handler)

    assert "rank 0 waits 0 s for ranks 1, 2 to prepare the data" in caplog.text


def test_ranks_that_do_not_come_in_time_are_named_with_the_knob() -> None:
    store = HashStore()
    with pytest.raises(PeerLostError):
        await_all(store, 2, 4, 0.05)

    with pytest.raises(PeerLostError, match=r"rank 0 waited 0.05 s for ranks 1, 3 .*\[cluster\] start_timeout_s"):
        await_all(store, 0, 4, 0.05)


@pytest.mark.parametrize(
    ("dtype", "error", "message"),
    [
        ("float32", ConfigError, "model.dtype is float32, on cuda it must be bfloat16"),
        pytest.param(
            "bfloat16",
            LayoutError,
            "this node shows 0 CUDA devices",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device"),
        ),
    ],
)
def test_a_device_that_does_not_do_is_refused_before_the_corpus_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, error: type[Exception], message: str
) -> None:
    changes = {"cluster": {"device": "cuda"}, "model": {"dtype": dtype}}
    config = load_config(write_run(tmp_path, changes=changes))
    monkeypatch.setattr(run, "open_corpus", lambda *_: pytest.fail("the corpus was read"))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)

    with pytest.raises(error, match=message):
        run.run_training(config, "127.0.0.1:9", StopSignal())
