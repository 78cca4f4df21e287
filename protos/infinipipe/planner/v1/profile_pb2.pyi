from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Profile(_message.Message):
    __slots__ = ("name", "comment", "model", "cluster", "forward", "backward", "all2all", "p2p", "param_gather_s", "memory", "nodes", "stage_layers", "head", "measured_tokens")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    ALL2ALL_FIELD_NUMBER: _ClassVar[int]
    P2P_FIELD_NUMBER: _ClassVar[int]
    PARAM_GATHER_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    STAGE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    MEASURED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    name: str
    comment: str
    model: ModelShape
    cluster: Cluster
    forward: ComputeCost
    backward: ComputeCost
    all2all: LinkCost
    p2p: LinkCost
    param_gather_s: _containers.RepeatedScalarFieldContainer[float]
    memory: MemoryCost
    nodes: NodeLinks
    stage_layers: _containers.RepeatedScalarFieldContainer[int]
    head: HeadCost
    measured_tokens: int
    def __init__(self, name: _Optional[str] = ..., comment: _Optional[str] = ..., model: _Optional[_Union[ModelShape, _Mapping]] = ..., cluster: _Optional[_Union[Cluster, _Mapping]] = ..., forward: _Optional[_Union[ComputeCost, _Mapping]] = ..., backward: _Optional[_Union[ComputeCost, _Mapping]] = ..., all2all: _Optional[_Union[LinkCost, _Mapping]] = ..., p2p: _Optional[_Union[LinkCost, _Mapping]] = ..., param_gather_s: _Optional[_Iterable[float]] = ..., memory: _Optional[_Union[MemoryCost, _Mapping]] = ..., nodes: _Optional[_Union[NodeLinks, _Mapping]] = ..., stage_layers: _Optional[_Iterable[int]] = ..., head: _Optional[_Union[HeadCost, _Mapping]] = ..., measured_tokens: _Optional[int] = ...) -> None: ...

class ModelShape(_message.Message):
    __slots__ = ("layers", "hidden", "kv_dim", "ffn", "vocab", "dtype_bytes", "query_dim")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    KV_DIM_FIELD_NUMBER: _ClassVar[int]
    FFN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_FIELD_NUMBER: _ClassVar[int]
    DTYPE_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUERY_DIM_FIELD_NUMBER: _ClassVar[int]
    layers: int
    hidden: int
    kv_dim: int
    ffn: int
    vocab: int
    dtype_bytes: int
    query_dim: int
    def __init__(self, layers: _Optional[int] = ..., hidden: _Optional[int] = ..., kv_dim: _Optional[int] = ..., ffn: _Optional[int] = ..., vocab: _Optional[int] = ..., dtype_bytes: _Optional[int] = ..., query_dim: _Optional[int] = ...) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("pp_size", "sp_size", "device_memory_bytes", "usable_memory_ratio", "dp_size")
    PP_SIZE_FIELD_NUMBER: _ClassVar[int]
    SP_SIZE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    USABLE_MEMORY_RATIO_FIELD_NUMBER: _ClassVar[int]
    DP_SIZE_FIELD_NUMBER: _ClassVar[int]
    pp_size: int
    sp_size: int
    device_memory_bytes: float
    usable_memory_ratio: float
    dp_size: int
    def __init__(self, pp_size: _Optional[int] = ..., sp_size: _Optional[int] = ..., device_memory_bytes: _Optional[float] = ..., usable_memory_ratio: _Optional[float] = ..., dp_size: _Optional[int] = ...) -> None: ...

class ComputeCost(_message.Message):
    __slots__ = ("alpha1", "alpha2", "beta1")
    ALPHA1_FIELD_NUMBER: _ClassVar[int]
    ALPHA2_FIELD_NUMBER: _ClassVar[int]
    BETA1_FIELD_NUMBER: _ClassVar[int]
    alpha1: float
    alpha2: float
    beta1: float
    def __init__(self, alpha1: _Optional[float] = ..., alpha2: _Optional[float] = ..., beta1: _Optional[float] = ...) -> None: ...

class HeadCost(_message.Message):
    __slots__ = ("forward_s_per_token", "backward_s_per_token")
    FORWARD_S_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_S_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    forward_s_per_token: float
    backward_s_per_token: float
    def __init__(self, forward_s_per_token: _Optional[float] = ..., backward_s_per_token: _Optional[float] = ...) -> None: ...

class LinkCost(_message.Message):
    __slots__ = ("bandwidth_bytes_per_s", "latency_s")
    BANDWIDTH_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    bandwidth_bytes_per_s: float
    latency_s: float
    def __init__(self, bandwidth_bytes_per_s: _Optional[float] = ..., latency_s: _Optional[float] = ...) -> None: ...

class MemoryCost(_message.Message):
    __slots__ = ("token_bytes", "logits_bytes", "model_state_bytes", "working")
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOGITS_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODEL_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKING_FIELD_NUMBER: _ClassVar[int]
    token_bytes: float
    logits_bytes: float
    model_state_bytes: _containers.RepeatedScalarFieldContainer[float]
    working: WorkingMemory
    def __init__(self, token_bytes: _Optional[float] = ..., logits_bytes: _Optional[float] = ..., model_state_bytes: _Optional[_Iterable[float]] = ..., working: _Optional[_Union[WorkingMemory, _Mapping]] = ...) -> None: ...

class WorkingMemory(_message.Message):
    __slots__ = ("chunk_token_bytes", "forward_token_bytes", "recompute_token_bytes", "backward_token_bytes", "context_token_bytes", "kv_gradient_bytes")
    CHUNK_TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    FORWARD_TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_GRADIENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    chunk_token_bytes: float
    forward_token_bytes: float
    recompute_token_bytes: float
    backward_token_bytes: float
    context_token_bytes: float
    kv_gradient_bytes: float
    def __init__(self, chunk_token_bytes: _Optional[float] = ..., forward_token_bytes: _Optional[float] = ..., recompute_token_bytes: _Optional[float] = ..., backward_token_bytes: _Optional[float] = ..., context_token_bytes: _Optional[float] = ..., kv_gradient_bytes: _Optional[float] = ...) -> None: ...

class NodeLinks(_message.Message):
    __slots__ = ("devices_per_node", "intra_node_bytes_per_s", "intra_node_latency_s", "inter_node_bytes_per_s", "inter_node_latency_s")
    DEVICES_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    INTRA_NODE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    INTRA_NODE_LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    INTER_NODE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    INTER_NODE_LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    devices_per_node: int
    intra_node_bytes_per_s: float
    intra_node_latency_s: float
    inter_node_bytes_per_s: float
    inter_node_latency_s: float
    def __init__(self, devices_per_node: _Optional[int] = ..., intra_node_bytes_per_s: _Optional[float] = ..., intra_node_latency_s: _Optional[float] = ..., inter_node_bytes_per_s: _Optional[float] = ..., inter_node_latency_s: _Optional[float] = ...) -> None: ...
