"""Data-loading workers forked beside a live channel, and a client used in a forked process."""

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from infinipipe_executor.plan_client import PlanClient
from support_service import CONTEXT_TOKENS, PROFILE, serve_in_child

pytestmark = [
    pytest.mark.distributed,
    # Newer Pythons warn about every fork beside threads; that it works is what is tested.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

BATCH_COUNT = 50


class Lengths(Dataset[int]):
    """A hundred lengths, each computed in a worker process."""

    def __len__(self) -> int:
        return 2 * BATCH_COUNT

    def __getitem__(self, index: int) -> int:
        return 1 + (index * 37) % 64


@pytest.fixture
def address() -> Iterator[str]:
    # A process of its own, so that this one holds nothing of gRPC but the client.
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve_in_child, args=(there,))
    process.start()
    assert here.poll(60), "the service did not start"
    yield here.recv()
    here.send("stop")
    process.join(20)
    assert process.exitcode == 0


def plan_beside_forked_workers(address: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    with PlanClient(address, call_timeout_s=20) as client:
        client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
        loader = DataLoader(Lengths(), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=20)
        planned_tokens = []
        for step, batch in enumerate(loader):
            client.submit_batch(step, batch.tolist())
            plan = client.fetch_plan(step, timeout_s=20)
            planned_tokens.append(plan.pipelines[0].chunks[0].token_count)
    pipe.send(planned_tokens)


def result_of_fresh_process(target: Callable[[str, Connection], None], address: str) -> Any:
    """Run beside nothing but what a trainer holds: servers of other tests leave threads here that no fork survives."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    trainer = spawn.Process(target=target, args=(address, there))
    trainer.start()
    assert here.poll(60), "the process did not answer"
    result = here.recv()
    trainer.join(20)
    assert trainer.exitcode == 0
    return result


def test_workers_forked_beside_a_live_channel_deliver_fifty_batches(address: str) -> None:
    planned_tokens = result_of_fresh_process(plan_beside_forked_workers, address)

    lengths = [Lengths()[index] for index in range(2 * BATCH_COUNT)]
    assert planned_tokens == [sum(lengths[2 * step : 2 * step + 2]) for step in range(BATCH_COUNT)]


def fetch_in_child(client: PlanClient, step: int, pipe: Connection) -> None:
    client.submit_batch(step, (5, 7))
    pipe.send(client.fetch_plan(step, timeout_s=20).step)


def plan_beside_a_forked_client(address: str, pipe: Connection) -> None:
    fork = multiprocessing.get_context("fork")
    with PlanClient(address, call_timeout_s=20) as client:
        client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
        here, there = fork.Pipe()
        child = fork.Process(target=fetch_in_child, args=(client, 1, there))
        child.start()
        client.submit_batch(0, (5, 7))
        own_step = client.fetch_plan(0, timeout_s=20).step
        assert here.poll(30), "the forked process got no plan"
        forked_step = here.recv()
        child.join(20)
        pipe.send((own_step, forked_step, child.exitcode))


def test_a_forked_process_opens_a_channel_of_its_own(address: str) -> None:
    assert result_of_fresh_process(plan_beside_a_forked_client, address) == (0, 1, 0)
