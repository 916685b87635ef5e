"""The methods, one file each; importing this package registers them."""

from acclimate.methods.adacontrast import AdaContrast, AdaContrastConfig
from acclimate.methods.bn import BN1, BN1Config
from acclimate.methods.cotta import CoTTA, CoTTAConfig
from acclimate.methods.gtta import GTTA, GTTAConfig
from acclimate.methods.mean_teacher import MeanTeacher, MeanTeacherConfig
from acclimate.methods.registry import get_method, method_names, register
from acclimate.methods.rmt import RMT, RMTConfig
from acclimate.methods.source import Source
from acclimate.methods.tent import Tent, TentConfig

__all__ = [
    "BN1",
    "GTTA",
    "RMT",
    "AdaContrast",
    "AdaContrastConfig",
    "BN1Config",
    "CoTTA",
    "CoTTAConfig",
    "GTTAConfig",
    "MeanTeacher",
    "MeanTeacherConfig",
    "RMTConfig",
    "Source",
    "Tent",
    "TentConfig",
    "get_method",
    "method_names",
    "register",
]

for _method in (Source, BN1, Tent, MeanTeacher, CoTTA, AdaContrast, GTTA, RMT):
    register(_method)
