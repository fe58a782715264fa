"""The device and the threads of torch, settled before a model is loaded."""

import torch

from a2cap.data.errors import ConfigError
from a2cap.pipeline.runtime.rank_group import process_rank
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig


def prepare_device(runtime: RuntimeConfig) -> torch.device:
    """Return the device to use, and set the threads of torch.

    Raises ConfigError for an unknown device and for a GPU that is missing.
    """
    # torch's default would round the convolutions of float32 to TF32
    torch.backends.cudnn.allow_tf32 = False
    if runtime.threads is not None:
        torch.set_num_threads(runtime.threads)
    if runtime.device == "auto":
        return _own_gpu() if torch.cuda.is_available() else torch.device("cpu")
    problem = f"runtime.device is not a device: {runtime.device!r}; use auto, cpu, cuda or mps"
    try:
        device = torch.device(runtime.device)
    except RuntimeError as error:
        raise ConfigError(problem) from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(problem)
    if device.type == "cpu":
        return device
    if device.type == "mps":
        if torch.backends.mps.is_available():
            return device
        raise ConfigError(
            f"runtime.device is {runtime.device!r} but torch finds no Apple GPU; use auto or cpu"
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            f"runtime.device is {runtime.device!r} but torch finds no GPU; use auto or cpu"
        )
    if device.index is None:
        return _own_gpu()
    if process_rank().local_ranks > 1:
        raise ConfigError(
            f"runtime.device is {runtime.device!r}, one GPU for the {process_rank().local_ranks} "
            "ranks that torchrun started; use auto"
        )
    return device


def require_double(device: torch.device, what: str) -> None:
    """Raise ConfigError if the device has no float64; what: computes in it."""
    if device.type == "mps":
        raise ConfigError(
            f"runtime.device is 'mps', which lacks the float64 that {what} computes in; set "
            "runtime.device to cpu"
        )


def _own_gpu() -> torch.device:
    """Return the GPU of this rank; without an index, every rank would take the first one."""
    process = process_rank()
    if process.local_ranks == 1:
        return torch.device("cuda")
    if process.local_ranks > torch.cuda.device_count():
        raise ConfigError(
            f"torchrun started {process.local_ranks} ranks for "
            f"{torch.cuda.device_count()} GPUs; set --nproc-per-node to the number of GPUs"
        )
    return torch.device("cuda", process.local_rank)
