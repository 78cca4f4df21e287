"""Errors of the executor, all below one base.

::

    ExecutorError       anything below
      ConfigError       a setting is unknown, missing or senseless
      LayoutError       the model cannot be divided among these stages and ranks
      DataError         the training data are unusable
      PlanError         a plan is missing, foreign or does not fit the batch
      CheckpointError   no checkpoint can be used, or the last one could not be saved
      DivergedError     the loss or the gradients are no longer finite
      PeerLostError     another rank of the job is gone or silent
      PlannerUnavailableError   nobody answers at the planner's address, or not in time
      PlannerRefusedError       the planner answered no; its sentence is the message
        TokenRefusedError       to the token, or to having none
        JobRefusedError         to the job
        BatchRefusedError       to the lengths of a batch
        PlanFailedError         it could not plan the batch
"""

EXIT_FAILURE = 1
EXIT_USAGE = 2
"""Exit codes: something failed; a setting or an argument is wrong."""


class ExecutorError(Exception):
    """Base of every error that the executor raises on purpose; its message is meant for the user."""


class ConfigError(ExecutorError):
    """A setting is unknown, missing or senseless; the message names the key, the value and the limit."""


class LayoutError(ExecutorError):
    """The model cannot be divided among these stages and ranks; the message lists the sizes that work."""


class DataError(ExecutorError):
    """The training data are unusable; the message names the file and the place in it."""


class PlanError(ExecutorError):
    """A plan is missing, belongs to another job or step, or does not fit the batch."""


class CheckpointError(ExecutorError):
    """No checkpoint can be used, or the last one could not be saved; the message names the folder and what is wrong."""


class DivergedError(ExecutorError):
    """The loss or the gradients are no longer finite; the message names the step, the value and what to try."""


class PeerLostError(ExecutorError):
    """Another rank of the job is gone or silent; the message names this rank, the step and the instruction."""


class PlannerUnavailableError(ExecutorError):
    """No planner answers at the address in time; the message names address and seconds."""


class PlannerRefusedError(ExecutorError):
    """The planner refused a request; the message is its sentence."""


class TokenRefusedError(PlannerRefusedError):
    """The planner does not know the token, or wants one; the message names the setting."""


class JobRefusedError(PlannerRefusedError):
    """The planner refused the job: its name, profile, options or context."""


class BatchRefusedError(PlannerRefusedError):
    """The planner refused a batch: its lengths, or its place in the job."""


class PlanFailedError(PlannerRefusedError):
    """The planner has no plan for the step and will not have one."""
