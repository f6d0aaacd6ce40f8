"""The errors that this package raises on purpose. Anything else that escapes from it is a bug."""

from __future__ import annotations


class CurriculossError(Exception):
    """Base class of all errors that a caller can cause and mend."""


class InvalidValueError(CurriculossError, ValueError):
    """An argument of the right type with a value that cannot be used."""


class InvalidTypeError(CurriculossError, TypeError):
    """An argument of the wrong type."""


class GroupError(CurriculossError, RuntimeError):
    """A process of a torch.distributed group has died or does not answer."""


class RunError(CurriculossError, RuntimeError):
    """A run's folder is not as it should be; one line says what to do."""


class BusyError(RunError):
    """Another process writes the run."""


class DamagedError(RunError):
    """A file of a run cannot be read."""


class DivergedError(RunError):
    """The training loss is not finite any more."""

    def __init__(self, message: str, epoch: int = 0) -> None:
        super().__init__(message)
        self.epoch = epoch  # the first is 1


class DataError(InvalidValueError):
    """Data that cannot be used. The message is one line: which file, what is wrong, what to do."""
