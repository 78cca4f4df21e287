"""Section ``[cluster]``: what the run has to run on."""

from typing import Annotated, Literal

from pydantic import Field

from infinipipe_executor.config.section import MAX_COUNT, MIB_BYTES, Positive, Seconds, Section


class ClusterConfig(Section):
    """Section ``[cluster]``.

    Attributes:
        pp_size: Pipeline stages.
        sp_size: Ranks of one stage, which share every chunk's tokens and the stage's parameters.
        stage_layers: Layers of every stage; absent: divided so that the slowest stage is fastest, the head counted.
        device: Where tensors live; "cpu" talks over gloo, "cuda" over NCCL.
        device_memory_mib: Memory of one device that plans count on, in MiB.
        usable_memory_ratio: Share of it that a plan may fill.
        collective_timeout_s: Longest wait of a rank for its peers within a collective.
        start_timeout_s: Longest wait of a rank, before the first collective, for others that still prepare their data.
    """

    pp_size: Positive
    sp_size: Positive
    stage_layers: tuple[Positive, ...] | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    device_memory_mib: Annotated[float, Field(gt=0, le=MAX_COUNT)]
    usable_memory_ratio: Annotated[float, Field(gt=0, le=1)] = 0.9
    collective_timeout_s: Seconds = 60.0
    start_timeout_s: Seconds = 3600.0

    @property
    def device_memory_bytes(self) -> float:
        """Memory of one device in bytes."""
        return self.device_memory_mib * MIB_BYTES
