"""Codec: plans and profiles to protobuf messages and JSON, and back.

JSON is protobuf's, with the proto's field names. Decoding is strict: an unknown key, an unspecified enum or a value out
of its type's range is refused with a sentence.
"""

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from infinipipe.planner.v1 import plan_pb2, profile_pb2
from infinipipe_contract.errors import InvalidPlanError, InvalidProfileError
from infinipipe_contract.json_text import JsonTextError, parse_json
from infinipipe_contract.names import unknown
from infinipipe_contract.plan import (
    Action,
    ActionKind,
    CandidateReport,
    Chunk,
    Estimate,
    ExecutionPlan,
    Pipeline,
    Slice,
    SolveOutcome,
    SolveReport,
    StageEstimate,
)
from infinipipe_contract.profile import (
    NO_HEAD,
    Cluster,
    ComputeCost,
    HeadCost,
    LinkCost,
    MemoryCost,
    ModelShape,
    NodeLinks,
    Profile,
    check_profile,
)
from infinipipe_contract.working_memory import WorkingMemory

ACTION_KIND_TO_PROTO: Mapping[ActionKind, plan_pb2.ActionKind] = {
    ActionKind.FORWARD: plan_pb2.ACTION_KIND_FORWARD,
    ActionKind.BACKWARD: plan_pb2.ACTION_KIND_BACKWARD,
}
ACTION_KIND_FROM_PROTO = {value: kind for kind, value in ACTION_KIND_TO_PROTO.items()}
OUTCOME_TO_PROTO: Mapping[SolveOutcome, plan_pb2.SolveOutcome] = {
    SolveOutcome.OPTIMAL: plan_pb2.SOLVE_OUTCOME_OPTIMAL,
    SolveOutcome.BEST_FOUND: plan_pb2.SOLVE_OUTCOME_BEST_FOUND,
    SolveOutcome.FALLBACK: plan_pb2.SOLVE_OUTCOME_FALLBACK,
}
OUTCOME_FROM_PROTO = {value: outcome for outcome, value in OUTCOME_TO_PROTO.items()}

MessageT = TypeVar("MessageT", bound=Message)


def plan_to_proto(plan: ExecutionPlan) -> plan_pb2.ExecutionPlan:
    """Encode a plan."""
    message = plan_pb2.ExecutionPlan(
        job=plan.job,
        generation=plan.generation,
        step=plan.step,
        policy=plan.policy,
        pipelines=[_pipeline_to_proto(pipeline) for pipeline in plan.pipelines],
        target_token_count=plan.target_token_count,
        digest=plan.digest,
        estimate=plan_pb2.Estimate(
            makespan_s=plan.estimate.makespan_s,
            ideal_s=plan.estimate.ideal_s,
            bubble_ratio=plan.estimate.bubble_ratio,
            recompute_ratio=plan.estimate.recompute_ratio,
        ),
        report=plan_pb2.SolveReport(
            outcome=OUTCOME_TO_PROTO[plan.report.outcome],
            solve_s=plan.report.solve_s,
            slice_count=plan.report.slice_count,
            gap_ratio=plan.report.gap_ratio,
            fallback_reason=plan.report.fallback_reason,
        ),
    )
    for stage in plan.estimate.stages:
        message.estimate.stages.add(busy_s=stage.busy_s, recompute_s=stage.recompute_s, peak_bytes=stage.peak_bytes)
    for candidate in plan.report.candidates:
        message.report.candidates.add(
            name=candidate.name,
            slice_count=candidate.slice_count,
            makespan_s=candidate.makespan_s,
            infeasible_reason=candidate.infeasible_reason,
            solve_s=candidate.solve_s,
            replica_index=candidate.replica_index,
        )
    return message


def plan_from_proto(message: plan_pb2.ExecutionPlan) -> ExecutionPlan:
    """Decode a plan as it stands; ``validate`` tells whether it makes sense.

    Raises:
        InvalidPlanError: If an enum is unspecified or unknown.
    """
    if message.report.outcome not in OUTCOME_FROM_PROTO:
        raise InvalidPlanError([f"report.outcome {message.report.outcome} is unspecified or unknown"])
    estimate, report = message.estimate, message.report
    return ExecutionPlan(
        job=message.job,
        generation=message.generation,
        step=message.step,
        policy=message.policy,
        pipelines=tuple(_pipeline_from_proto(pipeline) for pipeline in message.pipelines),
        target_token_count=message.target_token_count,
        estimate=Estimate(
            makespan_s=estimate.makespan_s,
            ideal_s=estimate.ideal_s,
            bubble_ratio=estimate.bubble_ratio,
            recompute_ratio=estimate.recompute_ratio,
            stages=tuple(StageEstimate(s.busy_s, s.recompute_s, s.peak_bytes) for s in estimate.stages),
        ),
        report=SolveReport(
            outcome=OUTCOME_FROM_PROTO[report.outcome],
            solve_s=report.solve_s,
            slice_count=report.slice_count,
            gap_ratio=report.gap_ratio,
            candidates=tuple(
                CandidateReport(c.name, c.slice_count, c.makespan_s, c.infeasible_reason, c.solve_s, c.replica_index)
                for c in report.candidates
            ),
            fallback_reason=report.fallback_reason,
        ),
        digest=message.digest,
    )


def plan_to_json(plan: ExecutionPlan) -> str:
    """Write a plan as JSON text."""
    return json_format.MessageToJson(plan_to_proto(plan), preserving_proto_field_name=True, indent=1)


def plan_from_json(text: str) -> ExecutionPlan:
    """Read a plan from JSON text.

    Raises:
        InvalidPlanError: If the text is not a plan.
    """
    try:
        return plan_from_proto(json_format.ParseDict(parse_json(text), plan_pb2.ExecutionPlan()))
    except (json_format.ParseError, JsonTextError) as error:
        raise InvalidPlanError([f"not a plan: {error}"]) from None


def profile_to_proto(profile: Profile) -> profile_pb2.Profile:
    """Encode a profile."""
    model, cluster = profile.model, profile.cluster
    return profile_pb2.Profile(
        name=profile.name,
        comment=profile.comment,
        model=profile_pb2.ModelShape(
            layers=model.layers,
            hidden=model.hidden,
            kv_dim=model.kv_dim,
            ffn=model.ffn,
            vocab=model.vocab,
            dtype_bytes=model.dtype_bytes,
            query_dim=model.query_dim,
        ),
        cluster=profile_pb2.Cluster(
            pp_size=cluster.pp_size,
            sp_size=cluster.sp_size,
            device_memory_bytes=cluster.device_memory_bytes,
            usable_memory_ratio=cluster.usable_memory_ratio,
            dp_size=None if cluster.dp_size == 1 else cluster.dp_size,
        ),
        forward=_compute_to_proto(profile.forward),
        backward=_compute_to_proto(profile.backward),
        all2all=_link_to_proto(profile.all2all),
        p2p=_link_to_proto(profile.p2p),
        param_gather_s=profile.param_gather_s,
        memory=profile_pb2.MemoryCost(
            token_bytes=profile.memory.token_bytes,
            logits_bytes=profile.memory.logits_bytes,
            model_state_bytes=profile.memory.model_state_bytes,
            working=_working_to_proto(profile.memory.working),
        ),
        nodes=None if profile.nodes is None else profile_pb2.NodeLinks(**dataclasses.asdict(profile.nodes)),
        stage_layers=profile.layer_division,
        head=None if profile.head == NO_HEAD else profile_pb2.HeadCost(**dataclasses.asdict(profile.head)),
        measured_tokens=profile.measured_tokens,
    )


def profile_from_proto(message: profile_pb2.Profile) -> Profile:
    """Decode a profile and check it.

    Raises:
        InvalidProfileError: If a number makes no sense.
    """
    model, cluster, memory = message.model, message.cluster, message.memory
    profile = Profile(
        name=message.name,
        comment=message.comment,
        model=ModelShape(
            model.layers,
            model.hidden,
            model.kv_dim,
            model.ffn,
            model.vocab,
            model.dtype_bytes,
            model.query_dim if model.HasField("query_dim") else None,
        ),
        cluster=Cluster(
            cluster.pp_size,
            cluster.sp_size,
            cluster.device_memory_bytes,
            cluster.usable_memory_ratio,
            cluster.dp_size if cluster.HasField("dp_size") else 1,
        ),
        forward=_compute_from_proto(message.forward),
        backward=_compute_from_proto(message.backward),
        all2all=LinkCost(message.all2all.bandwidth_bytes_per_s, message.all2all.latency_s),
        p2p=LinkCost(message.p2p.bandwidth_bytes_per_s, message.p2p.latency_s),
        param_gather_s=tuple(message.param_gather_s),
        memory=MemoryCost(
            memory.token_bytes,
            memory.logits_bytes,
            tuple(memory.model_state_bytes),
            _working_from_proto(memory.working) if memory.HasField("working") else None,
        ),
        nodes=_nodes_from_proto(message.nodes) if message.HasField("nodes") else None,
        layer_division=tuple(message.stage_layers) or None,
        head=HeadCost(message.head.forward_s_per_token, message.head.backward_s_per_token),
        measured_tokens=message.measured_tokens if message.HasField("measured_tokens") else None,
    )
    check_profile(profile)
    return profile


def profile_to_json(profile: Profile) -> str:
    """Write a profile as JSON text."""
    return json_format.MessageToJson(profile_to_proto(profile), preserving_proto_field_name=True, indent=1)


def profile_from_json(text: str) -> Profile:
    """Read a profile file.

    Raises:
        InvalidProfileError: If the text is not JSON, a key is unknown (names the nearest) or a number makes no sense.
    """
    try:
        content = parse_json(text)
    except JsonTextError as error:
        raise InvalidProfileError(f"profile: {error}") from None
    if not isinstance(content, dict):
        raise InvalidProfileError(f"profile: a JSON object is expected, found {type(content).__name__}")
    message = profile_pb2.Profile()
    _check_keys("profile", content, message)
    try:
        json_format.ParseDict(content, message)
    except json_format.ParseError as error:
        raise InvalidProfileError(f"profile: {error}") from None
    return profile_from_proto(message)


def _check_keys(path: str, content: Mapping[str, object], message: Message) -> None:
    """Refuse unknown keys at every level of a profile."""
    fields = message.DESCRIPTOR.fields_by_name
    for key, value in content.items():
        if key not in fields:
            raise InvalidProfileError(f"{path}: {unknown('key', key, fields)}")
        if fields[key].message_type is not None and isinstance(value, dict):
            _check_keys(f"{path}.{key}", value, getattr(message, key))


def _pipeline_to_proto(pipeline: Pipeline) -> plan_pb2.Pipeline:
    return plan_pb2.Pipeline(
        chunks=[
            plan_pb2.Chunk(slices=[plan_pb2.Slice(**piece._asdict()) for piece in chunk.slices])
            for chunk in pipeline.chunks
        ],
        stages=[
            plan_pb2.Stage(
                actions=[
                    plan_pb2.Action(
                        kind=ACTION_KIND_TO_PROTO[action.kind],
                        chunk_index=action.chunk_index,
                        recompute_layer_count=action.recompute_layer_count,
                    )
                    for action in actions
                ]
            )
            for actions in pipeline.stages
        ],
        replica_index=pipeline.replica_index,
    )


def _pipeline_from_proto(message: plan_pb2.Pipeline) -> Pipeline:
    return Pipeline(
        chunks=tuple(
            Chunk(tuple(Slice(s.sequence_index, s.start_token, s.length_tokens) for s in chunk.slices))
            for chunk in message.chunks
        ),
        stages=tuple(tuple(_action_from_proto(action) for action in stage.actions) for stage in message.stages),
        replica_index=message.replica_index,
    )


def _action_from_proto(message: plan_pb2.Action) -> Action:
    if message.kind not in ACTION_KIND_FROM_PROTO:
        raise InvalidPlanError([f"action kind {message.kind} of chunk {message.chunk_index} is unspecified or unknown"])
    return Action(ACTION_KIND_FROM_PROTO[message.kind], message.chunk_index, message.recompute_layer_count)


def _compute_to_proto(cost: ComputeCost) -> profile_pb2.ComputeCost:
    return profile_pb2.ComputeCost(alpha1=cost.alpha1, alpha2=cost.alpha2, beta1=cost.beta1)


def _compute_from_proto(message: profile_pb2.ComputeCost) -> ComputeCost:
    return ComputeCost(message.alpha1, message.alpha2, message.beta1)


def _link_to_proto(link: LinkCost) -> profile_pb2.LinkCost:
    return profile_pb2.LinkCost(bandwidth_bytes_per_s=link.bandwidth_bytes_per_s, latency_s=link.latency_s)


def _working_to_proto(working: WorkingMemory | None) -> profile_pb2.WorkingMemory | None:
    return None if working is None else profile_pb2.WorkingMemory(**dataclasses.asdict(working))


def _working_from_proto(message: profile_pb2.WorkingMemory) -> WorkingMemory:
    return WorkingMemory(
        message.chunk_token_bytes,
        message.forward_token_bytes,
        message.recompute_token_bytes,
        message.backward_token_bytes,
        message.context_token_bytes,
        message.kv_gradient_bytes,
    )


def _nodes_from_proto(message: profile_pb2.NodeLinks) -> NodeLinks:
    return NodeLinks(
        devices_per_node=message.devices_per_node,
        intra_node_bytes_per_s=message.intra_node_bytes_per_s,
        intra_node_latency_s=message.intra_node_latency_s,
        inter_node_bytes_per_s=message.inter_node_bytes_per_s,
        inter_node_latency_s=message.inter_node_latency_s,
    )
