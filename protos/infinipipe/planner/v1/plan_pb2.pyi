from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ActionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTION_KIND_UNSPECIFIED: _ClassVar[ActionKind]
    ACTION_KIND_FORWARD: _ClassVar[ActionKind]
    ACTION_KIND_BACKWARD: _ClassVar[ActionKind]

class SolveOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOLVE_OUTCOME_UNSPECIFIED: _ClassVar[SolveOutcome]
    SOLVE_OUTCOME_OPTIMAL: _ClassVar[SolveOutcome]
    SOLVE_OUTCOME_BEST_FOUND: _ClassVar[SolveOutcome]
    SOLVE_OUTCOME_FALLBACK: _ClassVar[SolveOutcome]
ACTION_KIND_UNSPECIFIED: ActionKind
ACTION_KIND_FORWARD: ActionKind
ACTION_KIND_BACKWARD: ActionKind
SOLVE_OUTCOME_UNSPECIFIED: SolveOutcome
SOLVE_OUTCOME_OPTIMAL: SolveOutcome
SOLVE_OUTCOME_BEST_FOUND: SolveOutcome
SOLVE_OUTCOME_FALLBACK: SolveOutcome

class ExecutionPlan(_message.Message):
    __slots__ = ("job", "generation", "step", "policy", "pipelines", "target_token_count", "digest", "estimate", "report")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    step: int
    policy: str
    pipelines: _containers.RepeatedCompositeFieldContainer[Pipeline]
    target_token_count: int
    digest: str
    estimate: Estimate
    report: SolveReport
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., policy: _Optional[str] = ..., pipelines: _Optional[_Iterable[_Union[Pipeline, _Mapping]]] = ..., target_token_count: _Optional[int] = ..., digest: _Optional[str] = ..., estimate: _Optional[_Union[Estimate, _Mapping]] = ..., report: _Optional[_Union[SolveReport, _Mapping]] = ...) -> None: ...

class Pipeline(_message.Message):
    __slots__ = ("chunks", "stages", "replica_index")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    stages: _containers.RepeatedCompositeFieldContainer[Stage]
    replica_index: int
    def __init__(self, chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ..., stages: _Optional[_Iterable[_Union[Stage, _Mapping]]] = ..., replica_index: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("slices",)
    SLICES_FIELD_NUMBER: _ClassVar[int]
    slices: _containers.RepeatedCompositeFieldContainer[Slice]
    def __init__(self, slices: _Optional[_Iterable[_Union[Slice, _Mapping]]] = ...) -> None: ...

class Slice(_message.Message):
    __slots__ = ("sequence_index", "start_token", "length_tokens")
    SEQUENCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    START_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LENGTH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sequence_index: int
    start_token: int
    length_tokens: int
    def __init__(self, sequence_index: _Optional[int] = ..., start_token: _Optional[int] = ..., length_tokens: _Optional[int] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("actions",)
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    actions: _containers.RepeatedCompositeFieldContainer[Action]
    def __init__(self, actions: _Optional[_Iterable[_Union[Action, _Mapping]]] = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("kind", "chunk_index", "recompute_layer_count")
    KIND_FIELD_NUMBER: _ClassVar[int]
    CHUNK_INDEX_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_LAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    kind: ActionKind
    chunk_index: int
    recompute_layer_count: int
    def __init__(self, kind: _Optional[_Union[ActionKind, str]] = ..., chunk_index: _Optional[int] = ..., recompute_layer_count: _Optional[int] = ...) -> None: ...

class Estimate(_message.Message):
    __slots__ = ("makespan_s", "ideal_s", "bubble_ratio", "recompute_ratio", "stages")
    MAKESPAN_S_FIELD_NUMBER: _ClassVar[int]
    IDEAL_S_FIELD_NUMBER: _ClassVar[int]
    BUBBLE_RATIO_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_RATIO_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    makespan_s: float
    ideal_s: float
    bubble_ratio: float
    recompute_ratio: float
    stages: _containers.RepeatedCompositeFieldContainer[StageEstimate]
    def __init__(self, makespan_s: _Optional[float] = ..., ideal_s: _Optional[float] = ..., bubble_ratio: _Optional[float] = ..., recompute_ratio: _Optional[float] = ..., stages: _Optional[_Iterable[_Union[StageEstimate, _Mapping]]] = ...) -> None: ...

class StageEstimate(_message.Message):
    __slots__ = ("busy_s", "recompute_s", "peak_bytes")
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    busy_s: float
    recompute_s: float
    peak_bytes: float
    def __init__(self, busy_s: _Optional[float] = ..., recompute_s: _Optional[float] = ..., peak_bytes: _Optional[float] = ...) -> None: ...

class SolveReport(_message.Message):
    __slots__ = ("outcome", "solve_s", "slice_count", "gap_ratio", "candidates", "fallback_reason")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SOLVE_S_FIELD_NUMBER: _ClassVar[int]
    SLICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    GAP_RATIO_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    outcome: SolveOutcome
    solve_s: float
    slice_count: int
    gap_ratio: float
    candidates: _containers.RepeatedCompositeFieldContainer[CandidateReport]
    fallback_reason: str
    def __init__(self, outcome: _Optional[_Union[SolveOutcome, str]] = ..., solve_s: _Optional[float] = ..., slice_count: _Optional[int] = ..., gap_ratio: _Optional[float] = ..., candidates: _Optional[_Iterable[_Union[CandidateReport, _Mapping]]] = ..., fallback_reason: _Optional[str] = ...) -> None: ...

class CandidateReport(_message.Message):
    __slots__ = ("slice_count", "makespan_s", "infeasible_reason", "solve_s", "name", "replica_index")
    SLICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAKESPAN_S_FIELD_NUMBER: _ClassVar[int]
    INFEASIBLE_REASON_FIELD_NUMBER: _ClassVar[int]
    SOLVE_S_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    slice_count: int
    makespan_s: float
    infeasible_reason: str
    solve_s: float
    name: str
    replica_index: int
    def __init__(self, slice_count: _Optional[int] = ..., makespan_s: _Optional[float] = ..., infeasible_reason: _Optional[str] = ..., solve_s: _Optional[float] = ..., name: _Optional[str] = ..., replica_index: _Optional[int] = ...) -> None: ...
