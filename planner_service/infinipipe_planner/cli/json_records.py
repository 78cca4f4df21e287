"""What commands write with ``--json`` about jobs, steps and ranks; docs/looking.md lists the keys.

Keys carry their unit; what is not known is null, never absent.
"""

import json
from collections.abc import Sequence
from typing import Any

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_contract.codec import OUTCOME_FROM_PROTO, plan_to_json
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import Timeline
from infinipipe_planner.measured import MeasuredRank, measured_bubble_ratio, measured_s
from infinipipe_planner.memory_curves import memory_tree

Record = dict[str, Any]

STATE_WORDS = {
    pb.PLAN_STATE_PLANNING: "planning",
    pb.PLAN_STATE_READY: "ready",
    pb.PLAN_STATE_FAILED: "failed",
}


def job_record(job: pb.Job) -> Record:
    """One job."""
    cluster = job.spec.profile.cluster
    return {
        "job": job.name,
        "generation": job.generation,
        "profile": job.spec.profile.name,
        "dp_size": cluster.dp_size or 1,
        "pp_size": cluster.pp_size,
        "sp_size": cluster.sp_size,
        "context_tokens": job.spec.context_tokens,
        "policy": job.spec.options.policy,
        "planned_step_count": job.planned_step_count,
        "submitted_step_count": job.submitted_step_count,
        "created": f"{job.create_time.ToDatetime():%Y-%m-%dT%H:%M:%SZ}",
    }


def step_record(summary: pb.PlanSummary) -> Record:
    """One line about a step's plan."""
    is_ready = summary.state == pb.PLAN_STATE_READY
    return {
        "step": summary.step,
        "state": STATE_WORDS.get(summary.state, "unknown"),
        "sequence_count": summary.sequence_count,
        "token_count": summary.token_count,
        "chunk_count": summary.chunk_count if is_ready else None,
        "pipeline_count": summary.pipeline_count if is_ready else None,
        "slice_count": summary.slice_count if is_ready else None,
        "predicted_s": summary.makespan_s if is_ready else None,
        "measured_s": summary.measured_s or None,
        "bubble_ratio": summary.bubble_ratio if is_ready else None,
        "solve_s": summary.solve_s if is_ready else None,
        "outcome": _outcome(summary),
        "failure": summary.failure or None,
    }


def _outcome(summary: pb.PlanSummary) -> str | None:
    outcome = OUTCOME_FROM_PROTO.get(summary.outcome)  # a planner from before the field does not say
    return None if outcome is None else outcome.value


def watched_step_record(summary: pb.PlanSummary, ranks: Sequence[MeasuredRank]) -> Record:
    """One step as `watch` shows it: what all ranks measured, once they have."""
    losses = [rank.loss for rank in ranks if rank.loss is not None]
    planned = step_record(summary)
    return {
        "kind": "step",
        "step": summary.step,
        "state": "measured" if ranks else planned["state"],
        "predicted_s": planned["predicted_s"],
        "measured_s": measured_s(ranks) if ranks else None,
        "predicted_bubble_ratio": planned["bubble_ratio"],
        "measured_bubble_ratio": measured_bubble_ratio(ranks),
        "plan_wait_s": max((rank.plan_wait_s for rank in ranks), default=None),
        "loss": losses[0] if losses else None,
        "failure": planned["failure"],
    }


def watched_job_record(job: pb.Job, trained_to_step: int | None, lead_step_count: int) -> Record:
    """A job as `watch` shows it: how far training and planning are."""
    return {
        "kind": "job",
        "job": job.name,
        "generation": job.generation,
        "planned_step_count": job.planned_step_count,
        "submitted_step_count": job.submitted_step_count,
        "trained_to_step": trained_to_step,
        "lead_step_count": lead_step_count,
    }


def show_record(plan: ExecutionPlan, planned: Timeline, profile: Profile, ranks: Sequence[MeasuredRank]) -> Record:
    """One step: the plan as in a plan file, its memory over time, and what the ranks measured."""
    return {
        "plan": json.loads(plan_to_json(plan)),
        "memory": memory_tree(planned, profile),
        "ranks": [_rank_record(rank) for rank in ranks],
    }


def _rank_record(rank: MeasuredRank) -> Record:
    return {
        "rank": rank.rank,
        "replica_index": rank.replica_index,
        "stage_index": rank.stage_index,
        "step_s": rank.step_s,
        "busy_s": rank.busy_s,
        "plan_wait_s": rank.plan_wait_s,
        "first_start_s": rank.first_start_s,
        "peak_bytes": rank.peak_bytes or None,
        "loss": rank.loss,
        "actions": [
            {
                "kind": span.kind.name.lower(),
                "pipeline_index": span.chunk_id.pipeline_index,
                "chunk_index": span.chunk_id.chunk_index,
                "start_s": span.start_s,
                "end_s": span.end_s,
            }
            for span in rank.spans
        ],
    }
