"""The device and the threads of torch, settled before a model is loaded."""

import logging
import re
import warnings
from functools import cache

import torch

from a2cap.data.errors import ConfigError
from a2cap.pipeline.runtime.rank_group import process_rank
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig

logger = logging.getLogger(__name__)

_OLD_DRIVER = re.compile(r"driver on your system is too old \(found version (\d+)\)")
"""What torch warns of on the first use of a GPU."""


def prepare_device(runtime: RuntimeConfig) -> torch.device:
    """Return the device to use, and set the threads of torch.

    Raises ConfigError for an unknown device and for a GPU that is missing.
    """
    # torch's default would round the convolutions of float32 to TF32
    torch.backends.cudnn.allow_tf32 = False
    if runtime.threads is not None:
        torch.set_num_threads(runtime.threads)
    if runtime.device == "auto":
        is_usable, reason = find_gpu()
        if reason:
            _warn_once(f"{reason}; computing on the CPU")
        return _own_gpu() if is_usable else torch.device("cpu")
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
    is_usable, reason = find_gpu()
    if not is_usable:
        raise ConfigError(
            f"runtime.device is {runtime.device!r} but {reason or 'torch finds no GPU'}; "
            "use auto or cpu"
        )
    if device.index is None:
        return _own_gpu()
    if process_rank().local_ranks > 1:
        raise ConfigError(
            f"runtime.device is {runtime.device!r}, one GPU for the {process_rank().local_ranks} "
            "ranks that torchrun started; use auto"
        )
    return device


def compiles_updates(runtime: RuntimeConfig, device: torch.device, *, deterministic: bool) -> bool:
    """Report whether updates on the device are compiled; deterministic: equal bits each time."""
    # a resumed training may meet other shapes first, and compile others
    is_automatic = device.type == "cuda" and not deterministic
    return runtime.compile == "on" or (runtime.compile == "auto" and is_automatic)


def require_double(device: torch.device, what: str) -> None:
    """Raise ConfigError if the device has no float64; what: computes in it."""
    if device.type == "mps":
        raise ConfigError(
            f"runtime.device is 'mps', which lacks the float64 that {what} computes in; set "
            "runtime.device to cpu"
        )


@cache  # torch warns of the driver once in a process, and later reports no GPU without a reason
def find_gpu() -> tuple[bool, str]:
    """Report whether torch can use a GPU; if not, return why where its driver is too old."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        is_usable = torch.cuda.is_available()
    texts = [str(warning.message) for warning in caught]
    version = next(filter(None, (_OLD_DRIVER.search(text) for text in texts)), None)
    if is_usable or version is None:
        return is_usable, ""
    needed = f"CUDA {torch.version.cuda}"
    return False, (
        f"the GPU's driver is too old for this torch of {needed}: {version[1]}; update the driver, "
        "or install a torch of an older CUDA"
    )


@cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


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
