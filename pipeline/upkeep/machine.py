"""Description of this machine: versions, device, Java, disk and memory."""

import shutil
from pathlib import Path

import torch

from a2cap.data.errors import ConfigError
from a2cap.data.files.sealed_folder import installed_versions
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.java import JavaError, find_java
from a2cap.pipeline.runtime.memory import available_memory
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig


def describe_machine(runtime: RuntimeConfig, artifacts: Path) -> dict[str, str]:
    """Describe versions, device, Java, the disk of `artifacts`, and memory, by name."""
    memory = available_memory()
    # the artifacts folder may not exist yet
    folder = next(f for f in (artifacts.absolute(), *artifacts.absolute().parents) if f.is_dir())
    return {
        "versions": ", ".join(f"{name} {v}" for name, v in installed_versions().items()),
        "device": _device(runtime),
        "java": _java(),
        "disk": f"{shutil.disk_usage(folder).free / 1e9:.1f} GB free at {str(artifacts)!r}",
        "memory": "unknown" if memory is None else f"{memory / 1e9:.1f} GB free",
    }


def _device(runtime: RuntimeConfig) -> str:
    try:
        device = prepare_device(runtime)
    except ConfigError:
        return "not usable"
    if device.type == "cpu":
        return f"cpu, {torch.get_num_threads()} threads"
    if device.type == "mps":
        return "mps, an Apple GPU, which shares the machine's memory"
    free, total = torch.cuda.mem_get_info(device)
    name = torch.cuda.get_device_name(device)
    return f"{device}, {name}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free"


def _java() -> str:
    try:
        return str(find_java())
    except JavaError:
        return "none"
