"""What the job store refuses.

JobStoreError                     anything below
  JobNotFoundError                no job of that name
  TooManyJobsError                the owner has as many jobs as are kept
  GenerationError                 the caller's generation is not the newest
  BatchChangedError               a step was submitted again with another batch
  StepForgottenError              the step is older than the steps that are kept
  StepNotPlannedError             a report for a step that has no plan
StoreError                        the file itself is in trouble (``store_file.py``)
"""

from infinipipe_planner.errors import PlannerError


class JobStoreError(PlannerError):
    """Base of what the store refuses."""


class JobNotFoundError(JobStoreError):
    """There is no job of that name."""


class TooManyJobsError(JobStoreError):
    """The owner has as many jobs as are kept."""


class GenerationError(JobStoreError):
    """The caller's generation is not the job's newest one."""


class BatchChangedError(JobStoreError):
    """A step was submitted again with another batch."""


class StepForgottenError(JobStoreError):
    """The step is older than the steps that are kept."""


class StepNotPlannedError(JobStoreError):
    """A report came for a step that has no plan."""
