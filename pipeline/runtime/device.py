"""Where to compute: resolves `runtime.device` and `runtime.threads` before any model is loaded."""

import torch

from a2cap.data.errors import ConfigError
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.launch import launch


def prepare_device(runtime: RuntimeConfig) -> torch.device:
    """The device to use; ConfigError where the named one is unknown or not there.

    float32 is computed as such: torch would let convolutions be rounded to TF32.
    """
    torch.backends.cudnn.allow_tf32 = False
    if runtime.threads is not None:
        torch.set_num_threads(runtime.threads)
    if runtime.device == "auto":
        return _own_gpu() if torch.cuda.is_available() else torch.device("cpu")
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
    if device.type == "cuda" and device.index is None:
        return _own_gpu()
    if device.type == "cuda" and launch().local_processes > 1:
        raise ConfigError(
            f"runtime.device is {runtime.device!r}, one GPU for the {launch().local_processes} "
            "processes that torchrun started; use auto"
        )
    return device


def _own_gpu() -> torch.device:
    """The GPU of this process: torchrun starts one for each, and they would all take the first."""
    started = launch()
    if started.local_processes == 1:
        return torch.device("cuda")
    if started.local_processes > torch.cuda.device_count():
        raise ConfigError(
            f"torchrun started {started.local_processes} processes for "
            f"{torch.cuda.device_count()} GPUs; give --nproc-per-node the number of GPUs"
        )
    return torch.device("cuda", started.local_rank)
