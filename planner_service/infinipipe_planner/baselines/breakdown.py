"""Where the time of a training step goes, in the same parts for plans and for systems without a pipeline."""

from dataclasses import dataclass

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ActionKind, ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_contract.text import count_of


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of one training step, mean over devices; the parts add up to the whole.

    Attributes:
        work_s: Computation that grows with the batch, forward and backward.
        fixed_s: Fixed seconds of chunks (paper: beta1).
        recompute_s: Recompute, with the communication that it repeats.
        exchange_s: Exchanges inside layers that computation does not hide: all-to-all, tensor and ring collectives.
        zero_s: Gathering of parameters and reduction of gradients that computation does not hide.
        idle_s: Waiting: bubbles, messages between stages, groups that are done before others.
        peak_bytes: Most bytes on any device.
        configuration: What the method chose, in a few words.
        hidden_zero_s: Gathering and reduction that computation does hide; no part of the whole.
    """

    work_s: float
    fixed_s: float
    recompute_s: float
    exchange_s: float
    zero_s: float
    idle_s: float
    peak_bytes: float
    configuration: str
    hidden_zero_s: float

    @property
    def total_s(self) -> float:
        """Seconds of the step."""
        return self.work_s + self.fixed_s + self.recompute_s + self.exchange_s + self.zero_s + self.idle_s


def break_down_plan(plan: ExecutionPlan, profile: Profile) -> Breakdown:
    """Divide the predicted time of a plan into its parts."""
    costs = CostModel(profile)
    work_s = fixed_s = recompute_s = exchange_s = zero_s = hidden_zero_s = 0.0
    for pipeline in plan.pipelines:
        for stage_index, actions in enumerate(pipeline.stages):
            for kind, chunk_index, layer_count in actions:
                chunk = pipeline.chunks[chunk_index]
                is_forward = kind is ActionKind.FORWARD
                cost = profile.forward if is_forward else profile.backward
                share = costs.stage_shares[stage_index]
                own_fixed_s = share * cost.beta1 / profile.cluster.pp_size
                compute_s = share * costs.compute_s(cost, chunk) + costs.head_s(kind, chunk.token_count, stage_index)
                work_s += compute_s - own_fixed_s
                fixed_s += own_fixed_s
                exchange_s += share * costs.all2all_s(chunk.token_count)
                gather_s = profile.param_gather_s[stage_index] * (1 if is_forward else 2)
                zero_s += max(0.0, gather_s - compute_s)
                hidden_zero_s += min(gather_s, compute_s)
                # The count stands on the forward action, the time is spent in the backward pass.
                recompute_s += costs.recompute_s(chunk, stage_index, layer_count)
    # Those of all replicas.
    stages, stage_count = plan.estimate.stages, len(plan.estimate.stages)
    busy_s = work_s + fixed_s + recompute_s + exchange_s + zero_s
    return Breakdown(
        work_s=work_s / stage_count,
        fixed_s=fixed_s / stage_count,
        recompute_s=recompute_s / stage_count,
        exchange_s=exchange_s / stage_count,
        zero_s=zero_s / stage_count,
        idle_s=max(0.0, plan.estimate.makespan_s - busy_s / stage_count),
        peak_bytes=max(stage.peak_bytes for stage in stages),
        configuration=_describe(plan),
        hidden_zero_s=hidden_zero_s / stage_count,
    )


def _describe(plan: ExecutionPlan) -> str:
    pipelines, chunks = count_of(len(plan.pipelines), "pipeline"), count_of(plan.chunk_count, "chunk")
    replicas = f" on {count_of(plan.replica_count, 'replica')}" if plan.replica_count > 1 else ""
    return f"{pipelines}{replicas}, {chunks}, longest sequence in {count_of(plan.report.slice_count, 'slice')}"
