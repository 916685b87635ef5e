"""What a run ran on: versions, processor, threads."""

import platform
from pathlib import Path

import torch

__all__ = ["describe_machine"]


def describe_machine(device: str = "cpu") -> str:
    """Describe the versions and the machine in one line."""
    where = torch.cuda.get_device_name() if device == "cuda" else _processor()
    threads = "" if device == "cuda" else f", {torch.get_num_threads()} threads"
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{versions}, {platform.system()} {platform.machine()}, {where}{threads}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
