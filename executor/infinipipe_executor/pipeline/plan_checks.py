"""What of a plan a stage makes sure of before it runs one: that it is for this mesh, this batch and this device."""

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.errors import PlanError
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.model.config import ModelConfig
from infinipipe_kernels.attention.limits import most_rows


def check_runnable(plan: ExecutionPlan, config: ModelConfig, mesh: Mesh) -> None:
    """Refuse a plan for another mesh, and chunks that attention does not take; every rank does, or none.

    Raises:
        PlanError: If the mesh of the plan is not this one, or a chunk is too large.
    """
    _check_layout(plan, mesh)
    _check_chunk_sizes(plan, config, mesh)


def check_targets(plan: ExecutionPlan, batch: Batch) -> None:
    """Refuse a plan that divides the loss of another batch.

    Raises:
        PlanError: If the numbers of targets differ.
    """
    if plan.target_token_count != batch.target_token_count:
        raise PlanError(
            f"the plan of step {plan.step} divides the loss by {plan.target_token_count} targets, "
            f"the batch has {batch.target_token_count}"
        )


def _check_layout(plan: ExecutionPlan, mesh: Mesh) -> None:
    if plan.stage_count != mesh.pp_size:
        raise PlanError(f"the plan of step {plan.step} has {plan.stage_count} stages, the job has {mesh.pp_size}")
    replica_index = max(pipeline.replica_index for pipeline in plan.pipelines)
    if replica_index >= mesh.dp_size:
        raise PlanError(
            f"the plan of step {plan.step} has a pipeline for replica {replica_index}, "
            f"the job has {mesh.dp_size}, counted from 0"
        )


def _check_chunk_sizes(plan: ExecutionPlan, config: ModelConfig, mesh: Mesh) -> None:
    """Refuse chunks that attention on CUDA cannot index: every rank does, whichever of them would run one."""
    if mesh.device.type == "cpu":
        return
    heads = config.heads // mesh.sp_size
    most_tokens = most_rows(heads * config.head_dim)
    for pipeline_index, pipeline in enumerate(plan.pipelines):
        for chunk_index, chunk in enumerate(pipeline.chunks):
            if chunk.token_count > most_tokens:
                raise PlanError(
                    f"the plan of step {plan.step} has {chunk.token_count} tokens in chunk {chunk_index} of pipeline "
                    f"{pipeline_index}, attention on CUDA takes at most {most_tokens} with {heads} query heads of "
                    f"{config.head_dim} on a rank; use more ranks a stage ([cluster] sp_size)"
                )
