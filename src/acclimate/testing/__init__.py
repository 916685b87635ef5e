"""What third parties run on a method of their own: the contract, tiny models, tiny data."""

from acclimate.testing.contract import CHECKS, check_adapter
from acclimate.testing.tiny import TinyClassifier, tiny_batches, tiny_source

__all__ = ["CHECKS", "TinyClassifier", "check_adapter", "tiny_batches", "tiny_source"]
