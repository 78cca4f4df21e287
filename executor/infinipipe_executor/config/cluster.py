"""Section ``[cluster]``: what the run has to run on."""

from typing import Annotated, Literal

from pydantic import Field

from infinipipe_executor.config.section import MAX_COUNT, MIB_BYTES, Positive, Seconds, Section


class ClusterConfig(Section):
    """Section ``[cluster]``.

    Attributes:
        dp_size: Replicas of the pipeline, which share the sequences of every batch.
        pp_size: Pipeline stages.
        sp_size: Ranks of one stage, which share every chunk's tokens and the stage's parameters.
        stage_layers: Layers of every stage; absent: divided so that the slowest stage is fastest, the head counted.
        device: Where tensors live; "cpu" talks over gloo, "cuda" over NCCL.
        device_memory_mib: Memory of one device that plans count on, in MiB.
        usable_memory_ratio: Share of it that a plan may fill.
        device_peak_tflops: Peak rate of one device in 10^12 operations a second, which MFU is measured against; absent:
            known for some CUDA devices, and without it there is no MFU.
        gradient_policy: "zero3" divides the gradients of every chunk among the ranks of a stage; "zero2" adds up those
            of the whole stage on every rank and divides them once a step: less communication, more memory.
        collective_timeout_s: Longest wait of a rank for its peers within a collective; longer than a step, since a
            replica that is done early waits for the others.
        start_timeout_s: Longest wait of a rank, before the first collective, for others that still prepare their data.
    """

    dp_size: Positive = 1
    pp_size: Positive
    sp_size: Positive
    stage_layers: tuple[Positive, ...] | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    device_memory_mib: Annotated[float, Field(gt=0, le=MAX_COUNT)]
    usable_memory_ratio: Annotated[float, Field(gt=0, le=1)] = 0.9
    device_peak_tflops: Annotated[float, Field(gt=0, le=MAX_COUNT)] | None = None
    gradient_policy: Literal["zero3", "zero2"] = "zero3"
    collective_timeout_s: Seconds = 60.0
    start_timeout_s: Seconds = 3600.0

    @property
    def rank_count(self) -> int:
        """Ranks of the job."""
        return self.dp_size * self.pp_size * self.sp_size

    @property
    def shards_gradients(self) -> bool:
        """Whether gradients are divided among the ranks of a stage chunk by chunk."""
        return self.gradient_policy == "zero3"

    @property
    def device_memory_bytes(self) -> float:
        """Memory of one device in bytes."""
        return self.device_memory_mib * MIB_BYTES
