"""Keep a vision model accurate when the world changes: test-time adaptation of classifiers."""

from acclimate.adapter import Adapter, Progress, StepReport
from acclimate.config import AdapterConfig, TeacherConfig, TrainingConfig
from acclimate.errors import (
    AcclimateError,
    InputError,
    ModelError,
    NotPreparedError,
    OptionError,
    OutputError,
    RegistrationError,
    StateError,
)
from acclimate.methods import (
    BN1,
    GTTA,
    RMT,
    AdaContrast,
    AdaContrastConfig,
    BN1Config,
    CoTTA,
    CoTTAConfig,
    GTTAConfig,
    MeanTeacher,
    MeanTeacherConfig,
    RMTConfig,
    Source,
    Tent,
    TentConfig,
    get_method,
    method_names,
    register,
)
from acclimate.models import load_model
from acclimate.network import Normalized
from acclimate.options import option
from acclimate.state import Snapshot

__version__ = "0.1.0"

__all__ = [
    "BN1",
    "GTTA",
    "RMT",
    "AcclimateError",
    "AdaContrast",
    "AdaContrastConfig",
    "Adapter",
    "AdapterConfig",
    "BN1Config",
    "CoTTA",
    "CoTTAConfig",
    "GTTAConfig",
    "InputError",
    "MeanTeacher",
    "MeanTeacherConfig",
    "ModelError",
    "Normalized",
    "NotPreparedError",
    "OptionError",
    "OutputError",
    "Progress",
    "RMTConfig",
    "RegistrationError",
    "Snapshot",
    "Source",
    "StateError",
    "StepReport",
    "TeacherConfig",
    "Tent",
    "TentConfig",
    "TrainingConfig",
    "get_method",
    "load_model",
    "method_names",
    "option",
    "register",
]
