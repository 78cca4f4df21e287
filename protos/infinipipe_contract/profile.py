"""The profile: the numbers of the cost model for one model on one cluster.

Its JSON form is a file that people exchange; ``codec`` reads and writes it. ``check_profile`` refuses numbers that make
no sense before anything is computed with them.
"""

import dataclasses
import math
from dataclasses import dataclass

from infinipipe_contract.errors import InvalidProfileError
from infinipipe_contract.stages import divide_layers
from infinipipe_contract.working_memory import WorkingMemory

# Beyond these no model and no machine is meant, and products of what is computed from them would overflow.
MAX_STAGES = 1_024
MAX_RANKS_PER_STAGE = 65_536
MAX_REPLICAS = 4_096
MAX_LAYERS = 65_536
MAX_WIDTH = 2**31 - 1
MAX_DTYPE_BYTES = 16
MAX_TEXT_CHARACTERS = 4_096
MAX_SECONDS = 1e6
MAX_BYTES = 1e18
MIN_BANDWIDTH_BYTES_PER_S = 1.0
MIN_TOKEN_SECONDS = 1e-24


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of the model that enter the cost model.

    Attributes:
        layers: Transformer layers over all stages (paper: L).
        hidden: Width of the residual stream (paper: D).
        kv_dim: Width of all key heads together (paper: D_kv).
        ffn: Width of the feed-forward layer.
        vocab: Entries of the vocabulary.
        dtype_bytes: Bytes of one activation element (paper: e).
        query_dim: Width of all query heads together; None where it is ``hidden``, as in the paper.
    """

    layers: int
    hidden: int
    kv_dim: int
    ffn: int
    vocab: int
    dtype_bytes: int
    query_dim: int | None = None

    @property
    def heads_dim(self) -> int:
        """Width of all query heads and all key heads together (paper: D + D_kv)."""
        return (self.hidden if self.query_dim is None else self.query_dim) + self.kv_dim


@dataclass(frozen=True, slots=True)
class Cluster:
    """Sizes of the cluster.

    Attributes:
        pp_size: Pipeline stages (paper: d_p).
        sp_size: Ranks of one stage, which share every chunk's tokens (paper: d_s).
        device_memory_bytes: Memory of one device.
        usable_memory_ratio: Share of it that a plan may fill, in (0, 1].
        dp_size: Replicas of the pipeline, among which a batch is split.
    """

    pp_size: int
    sp_size: int
    device_memory_bytes: float
    usable_memory_ratio: float
    dp_size: int = 1


@dataclass(frozen=True, slots=True)
class ComputeCost:
    """Coefficients of Eq. 1 in seconds: per token pair (alpha1), per token (alpha2), per chunk (beta1)."""

    alpha1: float
    alpha2: float
    beta1: float


@dataclass(frozen=True, slots=True)
class HeadCost:
    """What the last stage does behind its layers: final norm, projection to the vocabulary, loss.

    Seconds of one device per token that it holds; the ranks of the stage share a chunk's tokens. Not divided by the
    stages, as only one of them does it. Looking tokens up in the embedding, on the first stage, counts as nothing.
    """

    forward_s_per_token: float
    backward_s_per_token: float

    @property
    def s_per_token(self) -> float:
        """Both passes."""
        return self.forward_s_per_token + self.backward_s_per_token


NO_HEAD = HeadCost(0.0, 0.0)
"""A head that takes no time, as in the paper."""


@dataclass(frozen=True, slots=True)
class LinkCost:
    """A link (paper, Eq. 2): bytes per second and device, and seconds before the first byte arrives."""

    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class MemoryCost:
    """Memory coefficients (paper, Eqs. 5 and 6).

    Attributes:
        token_bytes: Activation bytes of one token over all layers, not divided among devices (paper: M_token).
        logits_bytes: Bytes of one token's logits on the last stage, not divided (paper: M_logits).
        model_state_bytes: Parameters, gradients and optimizer state of one device of each stage (paper: M_ms(p)).
        working: What the paper leaves out; None counts none of it.
    """

    token_bytes: float
    logits_bytes: float
    model_state_bytes: tuple[float, ...]
    working: WorkingMemory | None = None


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """Links inside and between the nodes of the cluster.

    Attributes:
        devices_per_node: Devices of one node.
        intra_node_bytes_per_s: Bytes per second that one device sends to the others of its node.
        intra_node_latency_s: Seconds before the first byte arrives inside a node.
        inter_node_bytes_per_s: Bytes per second that one node sends to the others, all its devices together.
        inter_node_latency_s: Seconds before the first byte arrives from another node.
    """

    devices_per_node: int
    intra_node_bytes_per_s: float
    intra_node_latency_s: float
    inter_node_bytes_per_s: float
    inter_node_latency_s: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Cost model of one model on one cluster.

    Attributes:
        name: Name for people.
        model: Shape of the model.
        cluster: Shape of the cluster.
        forward: Time of a forward pass.
        backward: Time of a backward pass without recompute.
        all2all: All-to-all inside a stage.
        p2p: Messages between neighbouring stages.
        param_gather_s: Seconds to gather the parameters of each stage once.
        memory: Memory per token and per stage.
        comment: Where the numbers come from.
        nodes: Links inside and between nodes; None where ``derive_node_links`` tells them.
        layer_division: Layers of every stage where somebody chose them; None where ``divide_layers`` does. Read
            ``stage_layers``, which holds either.
        head: Time of the last stage behind its layers.
        measured_tokens: Longest sequence in tokens that was timed; None where nothing was.
    """

    name: str
    model: ModelShape
    cluster: Cluster
    forward: ComputeCost
    backward: ComputeCost
    all2all: LinkCost
    p2p: LinkCost
    param_gather_s: tuple[float, ...]
    memory: MemoryCost
    comment: str = ""
    nodes: NodeLinks | None = None
    layer_division: tuple[int, ...] | None = None
    head: HeadCost = NO_HEAD
    measured_tokens: int | None = None

    @property
    def device_count(self) -> int:
        """Devices of one replica of the pipeline (paper: N)."""
        return self.cluster.pp_size * self.cluster.sp_size

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """Layers of every stage."""
        return self.layer_division or divide_layers(self.model.layers, self.cluster.pp_size)

    @property
    def usable_memory_bytes(self) -> float:
        """Bytes of one device that a plan may fill (paper: G)."""
        return self.cluster.device_memory_bytes * self.cluster.usable_memory_ratio


def extrapolation(profile: Profile, longest_tokens: int) -> str | None:
    """Say that a profile knows nothing of sequences as long as the longest of a batch.

    Returns:
        A sentence; None where the profile was measured that far, or not measured at all.
    """
    limit = profile.measured_tokens
    if limit is None or longest_tokens <= limit:
        return None
    return (
        f"profile {profile.name} was measured with up to {limit} tokens, a sequence has {longest_tokens}: "
        "its predicted times are extrapolated"
    )


def derive_node_links(profile: Profile) -> NodeLinks:
    """Give the profile's links inside and between nodes, or derive them where it has none.

    Derived, every stage is a node: ``all2all`` is the link inside, and the ranks of a stage share the node's link to
    the next one, each with the bandwidth that ``p2p`` tells.
    """
    if profile.nodes is not None:
        return profile.nodes
    sp_size, inside, between = profile.cluster.sp_size, profile.all2all, profile.p2p
    return NodeLinks(
        devices_per_node=sp_size,
        intra_node_bytes_per_s=inside.bandwidth_bytes_per_s,
        intra_node_latency_s=inside.latency_s,
        inter_node_bytes_per_s=between.bandwidth_bytes_per_s * sp_size,
        inter_node_latency_s=between.latency_s,
    )


def check_profile(profile: Profile) -> None:
    """Refuse a profile that makes no sense.

    Raises:
        InvalidProfileError: With the key, the value and the limit of the first senseless number.
    """
    model, cluster, memory = profile.model, profile.cluster, profile.memory
    for key, text in (("name", profile.name), ("comment", profile.comment)):
        _require(len(text) <= MAX_TEXT_CHARACTERS, key, f"{len(text)} characters", f"at most {MAX_TEXT_CHARACTERS}")
    for key, whole, most in (
        ("model.layers", model.layers, MAX_LAYERS),
        ("model.hidden", model.hidden, MAX_WIDTH),
        ("model.kv_dim", model.kv_dim, MAX_WIDTH),
        ("model.dtype_bytes", model.dtype_bytes, MAX_DTYPE_BYTES),
        ("cluster.pp_size", cluster.pp_size, MAX_STAGES),
        ("cluster.sp_size", cluster.sp_size, MAX_RANKS_PER_STAGE),
        ("cluster.dp_size", cluster.dp_size, MAX_REPLICAS),
    ):
        _require(whole >= 1, key, whole, "at least 1")
        _require(whole <= most, key, whole, f"at most {most}")
    for key, whole in (("model.ffn", model.ffn), ("model.vocab", model.vocab)):
        _require(whole >= 0, key, whole, "at least 0")
    _require(
        model.layers >= cluster.pp_size,
        "model.layers",
        model.layers,
        f"at least cluster.pp_size, which is {cluster.pp_size}",
    )
    for key, given in (("model.query_dim", model.query_dim), ("measured_tokens", profile.measured_tokens)):
        _require(given is None or given >= 1, key, given, "at least 1")
        _require(given is None or given <= MAX_WIDTH, key, given, f"at most {MAX_WIDTH}")
    if profile.layer_division is not None:
        _check_division(profile.layer_division, model.layers, cluster.pp_size)
    for key, entries, largest in (
        ("param_gather_s", profile.param_gather_s, MAX_SECONDS),
        ("memory.model_state_bytes", memory.model_state_bytes, MAX_BYTES),
    ):
        _require(len(entries) == cluster.pp_size, key, f"{len(entries)} entries", f"{cluster.pp_size} (one a stage)")
        for stage_index, value in enumerate(entries):
            _require_number(f"{key}[{stage_index}]", value, largest)
    for direction, cost in (("forward", profile.forward), ("backward", profile.backward)):
        _require_number(f"{direction}.alpha1", cost.alpha1, MAX_SECONDS)
        _require_number(f"{direction}.alpha2", cost.alpha2, MAX_SECONDS)
        _require_number(f"{direction}.beta1", cost.beta1, MAX_SECONDS)
        work_s = cost.alpha1 + cost.alpha2
        _require(work_s >= MIN_TOKEN_SECONDS, f"{direction}.alpha1 + alpha2", work_s, f"at least {MIN_TOKEN_SECONDS:g}")
    _require_number("head.forward_s_per_token", profile.head.forward_s_per_token, MAX_SECONDS)
    _require_number("head.backward_s_per_token", profile.head.backward_s_per_token, MAX_SECONDS)
    for name, link in (("all2all", profile.all2all), ("p2p", profile.p2p)):
        _require_number(f"{name}.latency_s", link.latency_s, MAX_SECONDS)
        _require_bandwidth(f"{name}.bandwidth_bytes_per_s", link.bandwidth_bytes_per_s)
    _check_memory(memory)
    _require_number("cluster.device_memory_bytes", cluster.device_memory_bytes, MAX_BYTES)
    ratio = cluster.usable_memory_ratio
    _require(0 < ratio <= 1, "cluster.usable_memory_ratio", ratio, "in (0, 1]")
    if profile.nodes is not None:
        _check_nodes(profile.nodes, profile.device_count)


def _check_memory(memory: MemoryCost) -> None:
    _require_number("memory.token_bytes", memory.token_bytes, MAX_BYTES)
    _require_number("memory.logits_bytes", memory.logits_bytes, MAX_BYTES)
    if memory.working is not None:
        for key, value in dataclasses.asdict(memory.working).items():
            _require_number(f"memory.working.{key}", value, MAX_BYTES)


def _check_division(stage_layers: tuple[int, ...], layers: int, pp_size: int) -> None:
    _require(len(stage_layers) == pp_size, "stage_layers", f"{len(stage_layers)} entries", f"{pp_size} (one a stage)")
    for stage_index, count in enumerate(stage_layers):
        _require(count >= 1, f"stage_layers[{stage_index}]", count, "at least 1")
    total = sum(stage_layers)
    _require(total == layers, "the sum of stage_layers", total, f"model.layers, which is {layers}")


def _check_nodes(nodes: NodeLinks, device_count: int) -> None:
    per_node = nodes.devices_per_node
    _require(per_node >= 1, "nodes.devices_per_node", per_node, "at least 1")
    _require(
        per_node >= device_count or device_count % per_node == 0,
        "nodes.devices_per_node",
        per_node,
        f"a divisor of pp_size * sp_size, which is {device_count}",
    )
    _require_number("nodes.intra_node_latency_s", nodes.intra_node_latency_s, MAX_SECONDS)
    _require_number("nodes.inter_node_latency_s", nodes.inter_node_latency_s, MAX_SECONDS)
    _require_bandwidth("nodes.intra_node_bytes_per_s", nodes.intra_node_bytes_per_s)
    _require_bandwidth("nodes.inter_node_bytes_per_s", nodes.inter_node_bytes_per_s)


def _require(holds: bool, key: str, value: object, limit: str) -> None:
    if not holds:
        raise InvalidProfileError(f"profile: {key} is {value}, it must be {limit}")


def _require_number(key: str, value: float, largest: float) -> None:
    _require(math.isfinite(value) and value >= 0, key, value, "a finite number of at least 0")
    _require(value <= largest, key, value, f"at most {largest:g}")


def _require_bandwidth(key: str, value: float) -> None:
    _require_number(key, value, MAX_BYTES)
    _require(value >= MIN_BANDWIDTH_BYTES_PER_S, key, value, f"at least {MIN_BANDWIDTH_BYTES_PER_S:g}")
