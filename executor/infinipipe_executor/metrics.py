"""Metrics: what a plan consists of, what the ranks measured, the line that a step prints and the numbers that are kept.

Pure; the trainer gathers and prints, ``metrics_sinks`` writes.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from infinipipe_contract.plan import ChunkKind, ExecutionPlan, chunk_kinds, slices_by_sequence
from infinipipe_executor.step_errors import error_ratio


@dataclass(frozen=True, slots=True)
class PlanShape:
    """What a plan consists of.

    Attributes:
        token_count: Tokens of the batch.
        chunk_count_by_kind: Chunks of every kind; a kind without chunks is absent.
        longest_slice_count: Slices of the longest sequence (paper: K).
        pipeline_count: Pipelines.
        recomputed_layer_count: Layers recomputed in the step, over all stages and chunks.
    """

    token_count: int
    chunk_count_by_kind: Counter[ChunkKind]
    longest_slice_count: int
    pipeline_count: int
    recomputed_layer_count: int


def describe_plan(plan: ExecutionPlan) -> PlanShape:
    """Count what a plan consists of."""
    kinds: Counter[ChunkKind] = Counter()
    longest = (0, 0)  # tokens, slices
    for pipeline in plan.pipelines:
        kinds.update(chunk_kinds(pipeline.chunks))
        for pieces in slices_by_sequence(pipeline.chunks).values():
            longest = max(longest, (pieces[-1][0].end_token, len(pieces)))
    return PlanShape(
        token_count=sum(chunk.token_count for pipeline in plan.pipelines for chunk in pipeline.chunks),
        chunk_count_by_kind=kinds,
        longest_slice_count=longest[1],
        pipeline_count=len(plan.pipelines),
        recomputed_layer_count=sum(
            action.recompute_layer_count
            for pipeline in plan.pipelines
            for actions in pipeline.stages
            for action in actions
        ),
    )


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """What the whole job measured in one step.

    Attributes:
        loss: Mean cross-entropy over all targets of the batch.
        z_loss: What the z-loss added to it in what was minimised.
        grad_norm: Global norm of the gradients before clipping.
        makespan_s: Seconds from the common start of the step to the end of the last action on any rank.
        bubble_ratio: Share of it in which ranks did not compute, mean over ranks.
        plan_wait_s: Seconds that rank 0 waited for the plan.
        step_s: Seconds that the step took rank 0 in all, from before that wait to behind the update.
        peak_bytes: Largest memory that any rank used.
        learning_rate: Learning rate of the update.
        device_flops: Useful operations of the step for each device (``useful_flops``).
        device_peak_flops: Operations per second that one device could reach; None where nobody knows.
        median_error_ratio: Median error of predicted step times over the last steps, without its sign.
    """

    loss: float
    z_loss: float
    grad_norm: float
    makespan_s: float
    bubble_ratio: float
    plan_wait_s: float
    step_s: float
    peak_bytes: float
    learning_rate: float
    device_flops: float
    device_peak_flops: float | None
    median_error_ratio: float

    def per_s(self, count: float) -> float:
        """Return so many of anything in the step as a rate; 0 for a step that took no time."""
        return count / self.step_s if self.step_s > 0 else 0.0

    @property
    def tflops_per_device(self) -> float:
        """Useful operations that a device did per second of the whole step, in 10^12."""
        return self.per_s(self.device_flops) / 1e12

    @property
    def mfu(self) -> float | None:
        """The same as a share of the peak (model FLOP/s utilisation); None where the peak is not known."""
        return None if self.device_peak_flops is None else self.tflops_per_device * 1e12 / self.device_peak_flops


def sequence_lengths(plan: ExecutionPlan) -> list[int]:
    """Tokens of every sequence of a plan, however it was cut."""
    return [
        pieces[-1][0].end_token
        for pipeline in plan.pipelines
        for pieces in slices_by_sequence(pipeline.chunks).values()
    ]


@dataclass(frozen=True, slots=True)
class MeasuredEvaluation:
    """What an evaluation of the held-out data gave.

    Attributes:
        loss: Mean cross-entropy over all targets.
        target_token_count: Tokens that have a target.
        token_count: Tokens.
        seconds: Time that it took rank 0, the first wait for the plans included.
    """

    loss: float
    target_token_count: int
    token_count: int
    seconds: float


def bubble_ratio(busy_s: Sequence[float], makespan_s: float) -> float:
    """Share of the makespan in which ranks are idle, mean over ranks; 0 for a step that took no time."""
    return 1 - math.fsum(busy_s) / (len(busy_s) * makespan_s) if makespan_s > 0 else 0.0


def step_line(step: int, steps: int, plan: ExecutionPlan, measured: MeasuredStep) -> str:
    """Write one line about a step: what was trained, how it was cut, what was expected and what was measured.

    Steps count from 0, as they do for the planner: the line says the number that ``infinipipe show`` takes.
    """
    shape = describe_plan(plan)
    kinds = "/".join(f"{shape.chunk_count_by_kind[kind]}{kind.value[0]}" for kind in ChunkKind)
    return (
        f"step {step:>{len(str(steps))}} of {steps}"
        f"  loss {measured.loss:.4f}"
        f"  grad norm {measured.grad_norm:.3f}"
        f"  learning rate {measured.learning_rate:.2e}"
        f"  tokens {shape.token_count}"
        f"  chunks {kinds}"
        f"  K {shape.longest_slice_count}"
        f"  pipelines {shape.pipeline_count}"
        f"  recompute {shape.recomputed_layer_count} layers"
        f"  predicted {plan.estimate.makespan_s:.2f} s"
        f"  measured {measured.makespan_s:.2f} s"
        f"  bubble {plan.estimate.bubble_ratio:.0%}/{measured.bubble_ratio:.0%}"
        f"  plan wait {measured.plan_wait_s:.1f} s"
        f"  {_speed(shape.token_count, measured)}"
    )


def _speed(token_count: int, measured: MeasuredStep) -> str:
    mfu = "" if measured.mfu is None else f"  MFU {measured.mfu:.1%}"
    return f"{measured.per_s(token_count):.0f} tokens/s  {measured.tflops_per_device:.3g} TFLOP/s a device{mfu}"


def step_scalars(plan: ExecutionPlan, measured: MeasuredStep) -> dict[str, float]:
    """Return the numbers of a step by tag, as every sink gets them; docs/training.md says what each one means."""
    shape = describe_plan(plan)
    speed = {"tflops_per_device": measured.tflops_per_device}
    if measured.mfu is not None:
        speed["mfu"] = measured.mfu
    return {
        "loss": measured.loss,
        "z_loss": measured.z_loss,
        "grad_norm": measured.grad_norm,
        "learning_rate": measured.learning_rate,
        "tokens": shape.token_count,
        "target_tokens": plan.target_token_count,
        "tokens_per_s": measured.per_s(shape.token_count),
        **speed,
        "step_s": measured.step_s,
        "measured_s": measured.makespan_s,
        "predicted_s": plan.estimate.makespan_s,
        "step_error_ratio": error_ratio(plan.estimate.makespan_s, measured.makespan_s),
        "median_step_error_ratio": measured.median_error_ratio,
        "bubble_ratio": measured.bubble_ratio,
        "predicted_bubble_ratio": plan.estimate.bubble_ratio,
        "plan_wait_s": measured.plan_wait_s,
        "peak_bytes": measured.peak_bytes,
        "chunks": shape.chunk_count_by_kind.total(),
        "pipelines": shape.pipeline_count,
        "slices_of_longest": shape.longest_slice_count,
        "recomputed_layers": shape.recomputed_layer_count,
    }


def evaluation_line(step: int, steps: int, measured: MeasuredEvaluation) -> str:
    """Write one line about an evaluation behind a step."""
    return (
        f"step {step:>{len(str(steps))}} of {steps}"
        f"  evaluation loss {measured.loss:.4f}"
        f"  tokens {measured.token_count}"
        f"  targets {measured.target_token_count}"
        f"  took {measured.seconds:.1f} s"
    )


def evaluation_scalars(measured: MeasuredEvaluation) -> dict[str, float]:
    """Return the numbers of an evaluation by tag, as every sink gets them."""
    return {
        "evaluation_loss": measured.loss,
        "evaluation_tokens": measured.token_count,
        "evaluation_target_tokens": measured.target_token_count,
        "evaluation_s": measured.seconds,
    }
