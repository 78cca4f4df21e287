import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from infinipipe.planner.v1 import plan_pb2 as _plan_pb2
from infinipipe.planner.v1 import profile_pb2 as _profile_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PlanState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLAN_STATE_UNSPECIFIED: _ClassVar[PlanState]
    PLAN_STATE_PLANNING: _ClassVar[PlanState]
    PLAN_STATE_READY: _ClassVar[PlanState]
    PLAN_STATE_FAILED: _ClassVar[PlanState]
PLAN_STATE_UNSPECIFIED: PlanState
PLAN_STATE_PLANNING: PlanState
PLAN_STATE_READY: PlanState
PLAN_STATE_FAILED: PlanState

class PlanOptions(_message.Message):
    __slots__ = ("policy", "max_slice_count", "gap_ratio", "node_limit", "budget_s")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    MAX_SLICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    GAP_RATIO_FIELD_NUMBER: _ClassVar[int]
    NODE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    BUDGET_S_FIELD_NUMBER: _ClassVar[int]
    policy: str
    max_slice_count: int
    gap_ratio: float
    node_limit: int
    budget_s: float
    def __init__(self, policy: _Optional[str] = ..., max_slice_count: _Optional[int] = ..., gap_ratio: _Optional[float] = ..., node_limit: _Optional[int] = ..., budget_s: _Optional[float] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("profile", "options", "context_tokens")
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    profile: _profile_pb2.Profile
    options: PlanOptions
    context_tokens: int
    def __init__(self, profile: _Optional[_Union[_profile_pb2.Profile, _Mapping]] = ..., options: _Optional[_Union[PlanOptions, _Mapping]] = ..., context_tokens: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("name", "spec", "generation", "create_time", "submitted_step_count", "planned_step_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_STEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    PLANNED_STEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    spec: JobSpec
    generation: int
    create_time: _timestamp_pb2.Timestamp
    submitted_step_count: int
    planned_step_count: int
    def __init__(self, name: _Optional[str] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., generation: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., submitted_step_count: _Optional[int] = ..., planned_step_count: _Optional[int] = ...) -> None: ...

class CreateJobRequest(_message.Message):
    __slots__ = ("job", "spec")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    job: str
    spec: JobSpec
    def __init__(self, job: _Optional[str] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ...) -> None: ...

class CreateJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class GetJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class DeleteJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class DeleteJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SubmitBatchRequest(_message.Message):
    __slots__ = ("job", "generation", "step", "lengths_tokens", "target_token_count")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    step: int
    lengths_tokens: _containers.RepeatedScalarFieldContainer[int]
    target_token_count: int
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., lengths_tokens: _Optional[_Iterable[int]] = ..., target_token_count: _Optional[int] = ...) -> None: ...

class SubmitBatchResponse(_message.Message):
    __slots__ = ("queue_position",)
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    queue_position: int
    def __init__(self, queue_position: _Optional[int] = ...) -> None: ...

class GetPlanRequest(_message.Message):
    __slots__ = ("job", "generation", "step", "after_rank")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    AFTER_RANK_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    step: int
    after_rank: int
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., after_rank: _Optional[int] = ...) -> None: ...

class GetPlanResponse(_message.Message):
    __slots__ = ("plan", "reports", "report_count")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    REPORT_COUNT_FIELD_NUMBER: _ClassVar[int]
    plan: _plan_pb2.ExecutionPlan
    reports: _containers.RepeatedCompositeFieldContainer[RankReport]
    report_count: int
    def __init__(self, plan: _Optional[_Union[_plan_pb2.ExecutionPlan, _Mapping]] = ..., reports: _Optional[_Iterable[_Union[RankReport, _Mapping]]] = ..., report_count: _Optional[int] = ...) -> None: ...

class ListPlansRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class ListPlansResponse(_message.Message):
    __slots__ = ("plans",)
    PLANS_FIELD_NUMBER: _ClassVar[int]
    plans: _containers.RepeatedCompositeFieldContainer[PlanSummary]
    def __init__(self, plans: _Optional[_Iterable[_Union[PlanSummary, _Mapping]]] = ...) -> None: ...

class PlanSummary(_message.Message):
    __slots__ = ("step", "state", "sequence_count", "token_count", "chunk_count", "pipeline_count", "slice_count", "makespan_s", "bubble_ratio", "solve_s", "measured_s", "failure", "outcome")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_COUNT_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SLICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAKESPAN_S_FIELD_NUMBER: _ClassVar[int]
    BUBBLE_RATIO_FIELD_NUMBER: _ClassVar[int]
    SOLVE_S_FIELD_NUMBER: _ClassVar[int]
    MEASURED_S_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    step: int
    state: PlanState
    sequence_count: int
    token_count: int
    chunk_count: int
    pipeline_count: int
    slice_count: int
    makespan_s: float
    bubble_ratio: float
    solve_s: float
    measured_s: float
    failure: str
    outcome: _plan_pb2.SolveOutcome
    def __init__(self, step: _Optional[int] = ..., state: _Optional[_Union[PlanState, str]] = ..., sequence_count: _Optional[int] = ..., token_count: _Optional[int] = ..., chunk_count: _Optional[int] = ..., pipeline_count: _Optional[int] = ..., slice_count: _Optional[int] = ..., makespan_s: _Optional[float] = ..., bubble_ratio: _Optional[float] = ..., solve_s: _Optional[float] = ..., measured_s: _Optional[float] = ..., failure: _Optional[str] = ..., outcome: _Optional[_Union[_plan_pb2.SolveOutcome, str]] = ...) -> None: ...

class SolvePlanRequest(_message.Message):
    __slots__ = ("profile", "options", "lengths_tokens")
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    profile: _profile_pb2.Profile
    options: PlanOptions
    lengths_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, profile: _Optional[_Union[_profile_pb2.Profile, _Mapping]] = ..., options: _Optional[_Union[PlanOptions, _Mapping]] = ..., lengths_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class SolvePlanResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: _plan_pb2.ExecutionPlan
    def __init__(self, plan: _Optional[_Union[_plan_pb2.ExecutionPlan, _Mapping]] = ...) -> None: ...

class ReportStepRequest(_message.Message):
    __slots__ = ("job", "generation", "step", "report")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    step: int
    report: RankReport
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., report: _Optional[_Union[RankReport, _Mapping]] = ...) -> None: ...

class ReportStepResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RankReport(_message.Message):
    __slots__ = ("rank", "stage_index", "step_s", "busy_s", "plan_wait_s", "peak_bytes", "loss", "actions", "replica_index", "first_start_s")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    PLAN_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_START_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    stage_index: int
    step_s: float
    busy_s: float
    plan_wait_s: float
    peak_bytes: float
    loss: float
    actions: _containers.RepeatedCompositeFieldContainer[ActionMeasurement]
    replica_index: int
    first_start_s: float
    def __init__(self, rank: _Optional[int] = ..., stage_index: _Optional[int] = ..., step_s: _Optional[float] = ..., busy_s: _Optional[float] = ..., plan_wait_s: _Optional[float] = ..., peak_bytes: _Optional[float] = ..., loss: _Optional[float] = ..., actions: _Optional[_Iterable[_Union[ActionMeasurement, _Mapping]]] = ..., replica_index: _Optional[int] = ..., first_start_s: _Optional[float] = ...) -> None: ...

class ActionMeasurement(_message.Message):
    __slots__ = ("pipeline_index", "kind", "chunk_index", "start_s", "end_s")
    PIPELINE_INDEX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CHUNK_INDEX_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    pipeline_index: int
    kind: _plan_pb2.ActionKind
    chunk_index: int
    start_s: float
    end_s: float
    def __init__(self, pipeline_index: _Optional[int] = ..., kind: _Optional[_Union[_plan_pb2.ActionKind, str]] = ..., chunk_index: _Optional[int] = ..., start_s: _Optional[float] = ..., end_s: _Optional[float] = ...) -> None: ...
