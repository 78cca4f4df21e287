"""Validation: every rule that a plan must keep before anybody runs it.

Both sides call it: the planner on what it made, every rank on what it was given. All broken rules are collected, so one
message shows the whole damage.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from infinipipe_contract.errors import InvalidPlanError
from infinipipe_contract.plan import ActionKind, ExecutionPlan, Pipeline, plan_digest, slices_by_sequence
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import broken_replicas, simulate
from infinipipe_contract.text import format_bytes, name_stage

# Planner and executor add the same bytes in another order.
MEMORY_TOLERANCE_RATIO = 1e-6


def validate(plan: ExecutionPlan, lengths_tokens: Sequence[int], profile: Profile) -> None:
    """Check a plan against the batch it is for and the cluster it runs on.

    Args:
        plan: The plan.
        lengths_tokens: Length of every sequence of the batch.
        profile: Cost model of the job; its memory limit binds.

    Raises:
        InvalidPlanError: With every broken rule. Rules that only make sense when the earlier ones hold (replay, memory)
            are checked last and only then.
    """
    broken = [*_broken_shape(plan, lengths_tokens, profile)]
    if not broken:
        broken += [*_broken_slices(plan), *_broken_tokens(plan, lengths_tokens)]
        for pipeline_index, pipeline in enumerate(plan.pipelines):
            broken += [f"pipeline {pipeline_index}: {rule}" for rule in _broken_order(pipeline)]
    if not broken:
        broken += _broken_replay(plan, profile)
    if broken:
        raise InvalidPlanError(broken)


def check_identity(plan: ExecutionPlan, job: str, generation: int, step: int) -> None:
    """Refuse a plan that was made for somebody else or for another step.

    Raises:
        InvalidPlanError: Naming what the plan says and what is expected.
    """
    broken = [
        f"the plan is of {name} {had!r}, expected {expected!r}"
        for name, had, expected in (
            ("job", plan.job, job),
            ("generation", plan.generation, generation),
            ("step", plan.step, step),
        )
        if had != expected
    ]
    if broken:
        raise InvalidPlanError(broken)


def _broken_shape(plan: ExecutionPlan, lengths_tokens: Sequence[int], profile: Profile) -> Iterator[str]:
    """Digest, finite numbers, stage counts, indices in range: what the other rules rely on."""
    if plan.digest != plan_digest(plan):
        yield f"digest {plan.digest[:12] or '(none)'} does not match the content, {plan_digest(plan)[:12]}"
    target_limit = sum(lengths_tokens)
    if not 0 <= plan.target_token_count <= target_limit:
        yield f"target token count is {plan.target_token_count}, the batch has {target_limit} tokens"
    numbers = (*dataclasses.astuple(plan.estimate)[:4], plan.report.solve_s, plan.report.gap_ratio)
    if not all(math.isfinite(number) for number in numbers):
        yield f"estimate or report holds a number that is not finite: {numbers}"
    if not plan.pipelines:
        yield "the plan has no pipeline"
    yield from broken_replicas(plan.pipelines, profile.cluster.dp_size)
    for pipeline_index, pipeline in enumerate(plan.pipelines):
        where = f"pipeline {pipeline_index}"
        if len(pipeline.stages) != profile.cluster.pp_size:
            yield f"{where}: {len(pipeline.stages)} stages planned, the profile has {profile.cluster.pp_size}"
        for stage_index, (actions, layer_limit) in enumerate(zip(pipeline.stages, profile.stage_layers, strict=False)):
            for action in actions:
                if not 0 <= action.chunk_index < len(pipeline.chunks):
                    yield f"{where}, stage {stage_index}: chunk {action.chunk_index} does not exist"
                if not 0 <= action.recompute_layer_count <= layer_limit:
                    yield (
                        f"{where}, stage {stage_index}: chunk {action.chunk_index} recomputes "
                        f"{action.recompute_layer_count} of {layer_limit} layers"
                    )


def _broken_slices(plan: ExecutionPlan) -> Iterator[str]:
    """Slices hold tokens, chunks hold slices, and at most one slice of a chunk has context."""
    for pipeline_index, pipeline in enumerate(plan.pipelines):
        for chunk_index, chunk in enumerate(pipeline.chunks):
            name = f"pipeline {pipeline_index}, chunk {chunk_index}"
            if not chunk.slices:
                yield f"{name} is empty"
            with_context = sum(piece.start_token > 0 for piece in chunk.slices)
            if with_context > 1:
                yield f"{name} holds {with_context} slices with context"
            for piece in chunk.slices:
                if piece.length_tokens <= 0 or piece.start_token < 0:
                    yield f"{name} holds a slice of {piece.length_tokens} tokens from token {piece.start_token}"


def _broken_tokens(plan: ExecutionPlan, lengths_tokens: Sequence[int]) -> Iterator[str]:
    """Every token of every sequence exactly once over all replicas, each sequence within one pipeline."""
    home: dict[int, int] = {}
    planned_tokens = [0] * len(lengths_tokens)
    for pipeline_index, pipeline in enumerate(plan.pipelines):
        for sequence_index, pieces in slices_by_sequence(pipeline.chunks).items():
            if not 0 <= sequence_index < len(lengths_tokens):
                yield f"sequence {sequence_index} is not in the batch of {len(lengths_tokens)}"
                continue
            if home.setdefault(sequence_index, pipeline_index) != pipeline_index:
                yield f"sequence {sequence_index} is in pipelines {home[sequence_index]} and {pipeline_index}"
            for piece, _ in pieces:
                expected = planned_tokens[sequence_index]
                if piece.start_token != expected:
                    yield f"sequence {sequence_index}: token {expected} expected, a slice starts at {piece.start_token}"
                planned_tokens[sequence_index] = piece.end_token
    for sequence_index, (planned, length) in enumerate(zip(planned_tokens, lengths_tokens, strict=True)):
        if planned != length:
            yield f"sequence {sequence_index}: {planned} of {length} tokens planned"


def _broken_order(pipeline: Pipeline) -> Iterator[str]:
    """Each chunk forward and backward once a stage; slices forward in order, backward in reverse; stages agree."""
    every_chunk = list(range(len(pipeline.chunks)))
    reference: tuple[list[int], list[int]] | None = None
    for stage_index, actions in enumerate(pipeline.stages):
        forward = [action.chunk_index for action in actions if action.kind is ActionKind.FORWARD]
        backward = [action.chunk_index for action in actions if action.kind is ActionKind.BACKWARD]
        if sorted(forward) != every_chunk or sorted(backward) != every_chunk:
            yield f"stage {stage_index} does not run every chunk forward and backward exactly once"
            continue
        reference = reference or (forward, backward)
        if (forward, backward) != reference:
            yield f"stage {stage_index} sends its messages in another order than the stages before it"
        yield from (f"stage {stage_index}: {rule}" for rule in _broken_stage_order(pipeline, stage_index))


def _broken_stage_order(pipeline: Pipeline, stage_index: int) -> Iterator[str]:
    at = {(action.kind, action.chunk_index): position for position, action in enumerate(pipeline.stages[stage_index])}
    forward, backward = ActionKind.FORWARD, ActionKind.BACKWARD
    for chunk_index in range(len(pipeline.chunks)):
        if at[forward, chunk_index] > at[backward, chunk_index]:
            yield f"chunk {chunk_index} runs backward before forward"
    for action in pipeline.stages[stage_index]:
        if action.kind is backward and action.recompute_layer_count:
            yield f"chunk {action.chunk_index}: the recompute count belongs on the forward action"
    for sequence_index, pieces in slices_by_sequence(pipeline.chunks).items():
        chunk_indices = [chunk_index for _, chunk_index in pieces]
        for earlier, later in itertools.pairwise(chunk_indices):
            if earlier == later:
                yield f"chunk {earlier} holds two slices of sequence {sequence_index}"
            elif at[forward, earlier] > at[forward, later]:
                yield f"sequence {sequence_index}: chunk {later} runs forward before chunk {earlier}, its context"
            elif at[backward, earlier] < at[backward, later]:
                yield f"sequence {sequence_index}: chunk {earlier} runs backward before chunk {later}, which reads it"


def _broken_replay(plan: ExecutionPlan, profile: Profile) -> Iterator[str]:
    """No dead-lock, and memory within the limit on every stage at every moment."""
    try:
        timeline = simulate(plan.pipelines, profile)
    except InvalidPlanError as error:
        yield from error.broken
        return
    usable_bytes = profile.usable_memory_bytes
    for stage in timeline.stages:
        if stage.peak_bytes > usable_bytes * (1 + MEMORY_TOLERANCE_RATIO):
            name = name_stage(stage.stage_index, stage.replica_index, profile.cluster.dp_size)
            yield (
                f"{name} needs {format_bytes(stage.peak_bytes)}, "
                f"{format_bytes(usable_bytes)} are usable (device_memory_bytes * usable_memory_ratio)"
            )
