"""Every exception of accel_nb.

AccelNbError
├─ PlanError                      the request cannot be carried out; nothing was started
│  ├─ InvalidArgument             an argument's value or type; also a ValueError
│  ├─ UnknownDevice               a device kind, index or id that is not there
│  ├─ NotEnoughDevices            more ranks asked for than devices
│  ├─ EngineUnavailable           the engine is missing, or not part of this version
│  ├─ PortInUse                   `use_port` is taken
│  └─ ConfigError                 a configuration file cannot be obeyed; also a ValueError
│     ├─ ConfigNotFound           there is none where it was said to be; also a FileNotFoundError
│     └─ ConfigExists             there is one where a new one was to be written; also a FileExistsError
├─ PayloadError                   the function cannot travel; nothing was started
│  ├─ NotPicklable                names the path to the offending variable
│  ├─ PayloadTooLarge             does not fit into free memory
│  └─ PythonMismatch              packed by another Python
├─ StartError                     started, but the ranks never came up
│  ├─ ServerFailed                the process that forks ranks died or never answered
│  └─ RendezvousTimeout           some ranks did not arrive in init_process_group
├─ RunFailed                      ranks failed; `.failures`, the cause first
├─ RunStopped                     somebody stopped the run
├─ ResultError                    a rank's return value cannot be brought back
└─ TrainingError                  raised inside a rank by the training layer
   ├─ NoExecutableBatchSize       even the smallest batch does not fit into memory; also a RuntimeError
   ├─ StateWasReset               made before the state was reset, used after it; also an AttributeError
   ├─ AnotherRankFailed           this rank cannot go on without a rank that failed
   ├─ DistributedOperationException   ranks called an operation with data that do not fit together
   └─ CheckpointError             a checkpoint cannot be written or read
      └─ CheckpointNotFound       there is none; also a ValueError
"""

from __future__ import annotations


class AccelNbError(Exception):
    """Root of the tree."""


class PlanError(AccelNbError):
    """The request cannot be carried out. Nothing was started."""


class InvalidArgument(PlanError, ValueError):
    """An argument of the call has a value or type that is never right, whatever the machine."""


class UnknownDevice(PlanError):
    """A device kind, index or id that this machine does not have."""


class NotEnoughDevices(PlanError):
    """More ranks were asked for than there are devices."""


class EngineUnavailable(PlanError):
    """What would start the ranks is missing on this machine or not part of this version."""


class PortInUse(PlanError):
    """The port given as `use_port` is taken."""


class ConfigError(PlanError, ValueError):
    """A configuration file holds what cannot be read or carried out. The text names the file and the key."""


class ConfigNotFound(ConfigError, FileNotFoundError):
    """There is no configuration file at the path that was given."""


class ConfigExists(ConfigError, FileExistsError):
    """There is a file where a configuration was to be written, and nobody said that it may be replaced."""


class PayloadError(AccelNbError):
    """The function or its arguments cannot travel to the ranks. Nothing was started."""


class NotPicklable(PayloadError):
    """An object reached from the function cannot be pickled; `path` leads to it from the function."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class PayloadTooLarge(PayloadError):
    """The payload does not fit into the memory that is free."""


class PythonMismatch(PayloadError):
    """The payload was packed by another Python or cloudpickle."""


class StartError(AccelNbError):
    """Processes were started, but the ranks never came up."""


class ServerFailed(StartError):
    """The process that forks ranks died or never answered."""


class RendezvousTimeout(StartError):
    """Some ranks did not arrive in ``init_process_group`` before the deadline."""


class RunStopped(AccelNbError):
    """The run was stopped through its handle."""


class ResultError(AccelNbError):
    """The run succeeded, but a rank's return value cannot be brought back."""


class TrainingError(AccelNbError):
    """Raised inside a rank by the training layer."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be written, or is incomplete, damaged or of another program. Raised alike on every rank."""


class CheckpointNotFound(CheckpointError, ValueError):
    """There is no checkpoint where one was looked for."""


class AnotherRankFailed(TrainingError):
    """This rank cannot go on because another one failed. That failure is the cause; this one only follows from it."""


class StateWasReset(TrainingError, AttributeError):
    """A state, or an Accelerator, that was made before the state was reset is used again."""


class DistributedOperationException(TrainingError):
    """Ranks called operations, or gave them data, that do not fit together. Raised on every rank."""

    differing: tuple[int, ...] = ()
    """Ranks whose calls were not those of most; empty: there were no such."""


class NoExecutableBatchSize(TrainingError, RuntimeError):
    """`find_executable_batch_size` has no smaller size left to try."""
