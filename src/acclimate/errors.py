"""The exceptions of acclimate: every message says what was wrong, what was got and what to do."""

__all__ = [
    "AcclimateError",
    "InputError",
    "ModelError",
    "NotPreparedError",
    "OptionError",
    "OutputError",
    "RegistrationError",
    "StateError",
]


class AcclimateError(Exception):
    """Base of every error that acclimate raises on purpose."""


class InputError(AcclimateError, ValueError):
    """Images, labels or source data that a method cannot work with."""


class ModelError(AcclimateError, ValueError):
    """A model that a method cannot adapt."""


class NotPreparedError(AcclimateError, RuntimeError):
    """A method that needs source data was used before ``prepare``."""


class OptionError(AcclimateError, ValueError):
    """An option with an unknown name or a value outside its range."""


class OutputError(AcclimateError, OSError):
    """A file or folder that cannot be written."""


class RegistrationError(AcclimateError, ValueError):
    """A class that cannot be registered as a method."""


class StateError(AcclimateError, ValueError):
    """A snapshot or state file that does not fit the adapter it is given to."""
