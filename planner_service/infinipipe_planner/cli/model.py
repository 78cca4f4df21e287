"""What the commands that take a model and a cluster by name have in common."""

import enum
from pathlib import Path

from infinipipe_contract.names import unknown
from infinipipe_planner.analytic.devices import DEVICES
from infinipipe_planner.analytic.profile import Hardware, HardwareError

MODEL_HELP = "Model: its config.json (Hugging Face); Llama, Mistral, Qwen2 or Qwen3."
DEVICE_HELP = f"Device: {', '.join(DEVICES)}."
NODES_HELP = "Nodes of the cluster."
DEVICES_PER_NODE_HELP = "Devices of one node."
GRADIENT_POLICY_HELP = (
    "As in [cluster] of a run: zero3 reduces gradients every chunk, zero2 holds whole ones for a step."
)


class GradientPolicy(enum.StrEnum):
    """What a run does with gradients, by the name in its configuration."""

    ZERO3 = "zero3"
    ZERO2 = "zero2"

    @property
    def shards_gradients(self) -> bool:
        """Whether the gradients of every chunk are divided among the ranks of a stage."""
        return self is GradientPolicy.ZERO3


def read_hardware(device: str, nodes: int, devices_per_node: int) -> Hardware:
    """Look a cluster up.

    Raises:
        HardwareError: If there is no such device.
    """
    if device.lower() not in DEVICES:
        raise HardwareError(unknown("device", device, DEVICES))
    return Hardware(device.lower(), nodes, devices_per_node)


def name_model(path: Path) -> str:
    """Name a model by its folder, or by its file where that has a name of its own."""
    resolved = path.resolve()
    return resolved.parent.name if resolved.stem == "config" and resolved.parent.name else resolved.stem
