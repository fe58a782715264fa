"""Where to compute: resolves `runtime.device` and `runtime.threads` before any model is loaded."""

import os

import torch

from a2.data.errors import ConfigError
from a2.pipeline.config import RuntimeConfig


def prepare_device(runtime: RuntimeConfig) -> torch.device:
    """The device to use; ConfigError where the named one is unknown or not there."""
    if runtime.threads is not None:
        torch.set_num_threads(runtime.threads)
    if runtime.device == "auto" and torch.cuda.is_available():
        # torchrun starts a process per GPU, and they would all take the first
        number = os.environ.get("LOCAL_RANK")
        return torch.device("cuda" if number is None else f"cuda:{number}")
    if runtime.device == "auto":
        return torch.device("cpu")
    problem = f"runtime.device is no device: {runtime.device!r}; use auto, cpu or cuda"
    try:
        device = torch.device(runtime.device)
    except RuntimeError as error:
        raise ConfigError(problem) from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(problem)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"runtime.device is {runtime.device!r} but torch sees no GPU; use auto or cpu"
        )
    return device
