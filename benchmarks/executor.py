"""Measure the executor on the CPU: policies beside each other on two stages, and one process beside transformers.

    python benchmarks/executor.py [--quick] [--only policies|transformers]

Everything runs in turns, so that a slow moment of the machine hits all ways alike, and medians count. Passes are timed
in seconds of the processor, one thread a process, so that other work on the machine hardly counts. For policies the
measured passes are put together as the plan orders them, two stages at a time, and messages between them count as
nothing: that is "replayed". "By the clock" is what the two processes really took; on a machine with two cores of its
own both agree. Prints the tables of docs/results.md.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch._C._distributed_c10d import FileStore

from infinipipe_contract.plan import ActionKind, ChunkId, ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_executor.config import ClusterConfig
from infinipipe_executor.cpu_defaults import set_cpu_defaults
from infinipipe_executor.data.batch import Batch, make_sequence
from infinipipe_executor.links import NO_LINK
from infinipipe_executor.mesh import Mesh, init_mesh
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.export import llama_config
from infinipipe_executor.model.hf_names import to_hf
from infinipipe_executor.model.stage import Stage, build_stage, initial_parameter, parameter_shapes
from infinipipe_executor.pipeline.runner import StepRunner
from infinipipe_executor.profiler import measure_profile
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan

MODEL = ModelConfig(layers=8, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn=352, vocab=512)
DEVICE_MEMORY_MIB = 8192.0  # more than any plan needs: what is compared is time
POLICIES = ("search", "paper", "seq1f1b", "batch1f1b")
PADDED_SEQUENCES = 4  # of similar length in one padded batch
LEARNING_RATE = 1e-3
SEED = 5


@dataclass(frozen=True)
class Size:
    """How much is measured: tokens of the longest sequence, sequences of a batch, rounds."""

    context_tokens: int
    sequence_count: int
    rounds: int


FULL, QUICK = Size(2048, 30, 5), Size(1024, 10, 3)

Pass = tuple[ActionKind, ChunkId, float]
"""One pass as it ran: what it was, and its seconds of the processor."""


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description="Measure the executor on the CPU.")
    parser.add_argument("--quick", action="store_true", help="shorter sequences, smaller batches, fewer rounds")
    parser.add_argument("--only", choices=("policies", "transformers"), help="one of the two tables")
    arguments = parser.parse_args()
    size = QUICK if arguments.quick else FULL
    if arguments.only != "transformers":
        start(compare_policies, 2, size)
    if arguments.only != "policies":
        start(compare_transformers, 1, size)


def batches(size: Size) -> dict[str, list[int]]:
    """Lengths by name of the batch: mostly short with one of full length, all short, few and long."""
    draw = random.Random(SEED)
    context = size.context_tokens

    def lengths(count: int, most: int) -> list[int]:
        return [max(8, min(most, round(draw.lognormvariate(5.0, 1.0)))) for _ in range(count)]

    return {
        "skewed": [context, *lengths(size.sequence_count, context)],
        "short": lengths(size.sequence_count + 10, context // 4),
        "long": [context, *(round(context * draw.uniform(0.3, 0.9)) for _ in range(4))],
    }


def make_batch(lengths_tokens: Sequence[int]) -> Batch:
    """Draw tokens for the lengths."""
    generator = torch.Generator().manual_seed(SEED)
    return Batch(
        tuple(make_sequence(torch.randint(MODEL.vocab, (tokens,), generator=generator)) for tokens in lengths_tokens)
    )


def start(work: Callable[[int, Size], None], rank_count: int, size: Size) -> None:
    """Run work in processes that form a group over gloo."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_join, (work, rank_count, size, str(Path(folder, "store"))), nprocs=rank_count)  # type: ignore[attr-defined, no-untyped-call]  # torch


def _join(rank: int, work: Callable[[int, Size], None], rank_count: int, size: Size, store: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(rank_count), LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME="lo")
    set_cpu_defaults()
    dist.init_process_group("gloo", store=FileStore(store, rank_count), rank=rank, world_size=rank_count)
    with patch("infinipipe_executor.pipeline.stopwatch._clock", _processor_clock):
        work(rank, size)
    dist.destroy_process_group()


def _processor_clock() -> Callable[[], float]:
    """Time passes in seconds of this thread, which runs all of them, backward passes included."""
    now_s = time.thread_time()
    return lambda: now_s


def open_stage(pp_size: int, context_tokens: int) -> tuple[Stage, StepRunner, Profile]:
    """Build this rank's stage and measure the profile; a collective."""
    mesh: Mesh = init_mesh(pp_size, 1)
    stage = build_stage(MODEL, mesh, dtype=torch.float32, seed=SEED)
    runner = StepRunner(stage, mesh)
    cluster = ClusterConfig(pp_size=pp_size, sp_size=1, device_memory_mib=DEVICE_MEMORY_MIB)
    profile = measure_profile(MODEL, cluster, mesh, runner, context_tokens, dtype_bytes=4)
    if mesh.rank == 0:
        print(f"\nprofile: {profile.comment}\n")
    return stage, runner, replace(profile, p2p=NO_LINK)


def compare_policies(rank: int, size: Size) -> None:
    """Run the same batches under every policy on two stages; rank 0 prints the table."""
    _, runner, profile = open_stage(2, size.context_tokens)
    if rank == 0:
        print("| batch | policy | chunks | replayed s | over search | predicted | by the clock s | over search |")
        print("|---|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for name, lengths_tokens in batches(size).items():
        batch = make_batch(lengths_tokens)
        plans = share_plans(rank, lengths_tokens, profile)
        rounds = [[run_plan(runner, plan, batch) for plan in plans] for _ in range(size.rounds + 1)]
        times = [median_times([of[index] for of in rounds[1:]]) for index in range(len(plans))]  # the first warms up
        if rank == 0:
            print_policies(name, plans, times)


def share_plans(rank: int, lengths_tokens: list[int], profile: Profile) -> list[ExecutionPlan]:
    """Plan on rank 0, under every policy; a collective."""
    shared: list[Any] = [None]
    if rank == 0:
        shared[0] = [solve_plan(lengths_tokens, profile, PlanOptions(policy=policy)) for policy in POLICIES]
    dist.broadcast_object_list(shared)
    plans: list[ExecutionPlan] = shared[0]
    return plans


def print_policies(name: str, plans: list[ExecutionPlan], times: list[tuple[float, float]]) -> None:
    """Print the lines of one batch; ``times`` are replayed and clock seconds."""
    (search_s, search_clock_s), *_ = times
    for policy, plan, (replayed_s, clock_s) in zip(POLICIES, plans, times, strict=True):
        print(
            f"| {name} | {policy} | {sum(len(pipeline.chunks) for pipeline in plan.pipelines)} | {replayed_s:.3f} "
            f"| {replayed_s / search_s:.2f} | {plan.estimate.makespan_s / replayed_s - 1:+.1%} "
            f"| {clock_s:.3f} | {clock_s / search_clock_s:.2f} |",
            flush=True,
        )


def run_plan(runner: StepRunner, plan: ExecutionPlan, batch: Batch) -> tuple[list[Pass], float]:
    """Run a step; give the passes of this rank and the seconds by the clock."""
    dist.barrier()
    started_s = time.perf_counter()
    spans = runner.run(plan, batch).spans
    clock_s = time.perf_counter() - started_s
    return [(span.kind, span.chunk_id, span.end_s - span.start_s) for span in spans], clock_s


def median_times(runs: list[tuple[list[Pass], float]]) -> tuple[float, float]:
    """Give the replay of the median passes of all stages, and the median by the clock of the slowest; a collective."""
    passes = [
        (of_round[0][0], of_round[0][1], statistics.median(seconds for _, _, seconds in of_round))
        for of_round in zip(*(run for run, _ in runs), strict=True)
    ]
    shared: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shared, (passes, [clock_s for _, clock_s in runs]))
    slowest_s = [max(of_ranks) for of_ranks in zip(*(clocks for _, clocks in shared), strict=True)]
    return replay_s([of_stage for of_stage, _ in shared]), statistics.median(slowest_s)


def replay_s(stages: Sequence[Sequence[Pass]]) -> float:
    """Seconds until every stage has run its passes in their order, each as soon as its neighbour has sent for it.

    Args:
        stages: The passes of every stage as they ran.
    """
    ended_s: dict[tuple[int, ActionKind, ChunkId], float] = {}
    done, now_s = [0] * len(stages), [0.0] * len(stages)
    while any(done[index] < len(passes) for index, passes in enumerate(stages)):
        for index, passes in enumerate(stages):
            while done[index] < len(passes):
                kind, chunk_id, seconds = passes[done[index]]
                sender = index - 1 if kind is ActionKind.FORWARD else index + 1
                has_sender = 0 <= sender < len(stages)
                if has_sender and (sender, kind, chunk_id) not in ended_s:
                    break
                ready_s = ended_s[sender, kind, chunk_id] if has_sender else 0.0
                now_s[index] = max(now_s[index], ready_s) + seconds
                ended_s[index, kind, chunk_id] = now_s[index]
                done[index] += 1
    return max(now_s)


def compare_transformers(_: int, size: Size) -> None:
    """Train the same tokens with one rank and with transformers; print seconds of the processor for a whole step."""
    stage, runner, profile = open_stage(1, size.context_tokens)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=LEARNING_RATE)
    print("| batch | tokens | ours s | packed | padded | one by one | over the best of them |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for name, lengths_tokens in batches(size).items():
        batch = make_batch(lengths_tokens)
        plan = solve_plan(lengths_tokens, profile, PlanOptions())

        def ours(plan: ExecutionPlan = plan, batch: Batch = batch) -> float:
            loss = runner.run(plan, batch).loss
            optimizer.step()
            return loss

        ways: list[Callable[[], float]] = [ours, *transformers_ways(batch, size.context_tokens)]
        reset(stage)
        losses = [way() for way in ways]
        torch.testing.assert_close(losses, [losses[0]] * len(losses), rtol=1e-4, atol=0.0)
        times_s: list[list[float]] = [[] for _ in ways]
        for _round in range(size.rounds):
            for way, taken_s in zip(ways, times_s, strict=True):
                started_s = time.process_time()
                way()
                taken_s.append(time.process_time() - started_s)
        own_s, *other_s = (statistics.median(taken_s) for taken_s in times_s)
        ratios = " | ".join(f"{seconds / own_s:.2f}" for seconds in other_s)
        print(f"| {name} | {sum(lengths_tokens)} | {own_s:.3f} | {ratios} | {min(other_s) / own_s:.2f} |", flush=True)


def reset(stage: Stage) -> None:
    """Give every parameter its first value again: all ways begin with the same model."""
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            parameter.to_local().copy_(initial_parameter(name, parameter.shape, SEED))  # type: ignore[attr-defined]  # one rank holds all


def transformers_ways(batch: Batch, context_tokens: int) -> list[Callable[[], float]]:
    """Give the ways to train a batch with transformers: packed, padded, one by one; each returns the loss.

    Packed rows are no longer than the context, first-fit by falling length; transformers keeps documents apart by
    their position ids and attends under one mask a row.
    """
    by_length = sorted((sequence.token_ids for sequence in batch.sequences), key=len, reverse=True)
    rows: list[list[torch.Tensor]] = []
    for token_ids in by_length:
        fitting = (row for row in rows if sum(map(len, row)) + len(token_ids) <= context_tokens)
        row = next(fitting, None)
        if row is None:
            rows.append([token_ids])
        else:
            row.append(token_ids)
    groups = [by_length[index : index + PADDED_SEQUENCES] for index in range(0, len(by_length), PADDED_SEQUENCES)]
    inputs: list[list[Mapping[str, torch.Tensor]]] = [
        [packed_row(row) for row in rows],
        [padded_rows(group) for group in groups],
        [{"input_ids": token_ids[None], "labels": token_ids[None]} for token_ids in by_length],
    ]
    return [transformers_step(of_way, batch.target_token_count) for of_way in inputs]


def packed_row(row: Sequence[torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Put documents one behind the other; the first token of each is no target."""
    labels = [token_ids.clone() for token_ids in row]
    for of_document in labels:
        of_document[0] = -100
    positions = torch.cat([torch.arange(len(token_ids)) for token_ids in row])
    return {"input_ids": torch.cat(list(row))[None], "position_ids": positions[None], "labels": torch.cat(labels)[None]}


def padded_rows(group: Sequence[torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Put documents below each other, filled up to the longest."""
    pad: Callable[..., torch.Tensor] = torch.nn.utils.rnn.pad_sequence
    ones = [torch.ones_like(token_ids) for token_ids in group]
    return {
        "input_ids": pad(list(group), batch_first=True),
        "attention_mask": pad(ones, batch_first=True),
        "labels": pad(list(group), batch_first=True, padding_value=-100),
    }


def transformers_step(inputs: Sequence[Mapping[str, torch.Tensor]], target_count: int) -> Callable[[], float]:
    """Build the model with the same weights, and return what trains one step on all of the inputs."""
    import transformers  # noqa: PLC0415  # takes seconds, and only this table needs it

    config = transformers.LlamaConfig(**llama_config(MODEL, FULL.context_tokens))
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="sdpa")
    shapes = parameter_shapes(MODEL)
    model.load_state_dict({to_hf(name): initial_parameter(name, shape, SEED) for name, shape in shapes.items()})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)

    def step() -> float:
        total = 0.0
        for of_pass in inputs:
            loss = model(**of_pass, use_cache=False, num_items_in_batch=target_count).loss
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


if __name__ == "__main__":
    main()
