"""Errors of a device by their texts, since torch raises most of them as a plain RuntimeError."""

import re

_GPU = re.compile(
    r"(CUDA|HIP|cuDNN|NCCL|Triton) (driver )?error\b|(CUDA|HIP|MPS backend) out of memory",
    re.IGNORECASE,
)
_CPU_MEMORY = re.compile(r"DefaultCPUAllocator: .* allocate (\d+) bytes")
_MEMORY = re.compile(r"out of memory|_ALLOC(ATION)?_FAILED")
_REPEATED = {
    "no kernel image is available": "install a torch for this GPU, or set runtime.device=cpu",
    "invalid device ordinal": "set runtime.device to a GPU that the machine has",
}
"""Remedies of errors that the same command meets again."""


def device_failure(error: Exception, *, step: int | None = None) -> str | None:
    """Return what a GPU, or the memory of a CPU, failed in and what to do; None for other errors.

    step: of a training, which has checkpoints.
    """
    text = str(error)
    allocation = _CPU_MEMORY.search(text)
    if allocation or isinstance(error, MemoryError):  # of torch, or of numpy and Python
        size = f"{int(allocation[1]):,} bytes at once" if allocation else text or "no size is known"
        return f"out of memory: {size}; lower the batch size, or end other programs"
    if not _GPU.match(text):
        return None
    # the lines that follow are how to debug a kernel, the sentences how the memory is divided
    line = ". ".join(text.splitlines()[0].split(". ")[:3])
    when = "" if step is None else f" after step {step}"
    if _MEMORY.search(line):
        return f"out of GPU memory{when}: {line}; lower the batch size, or use a larger GPU"
    if "device-side assert" in line:  # as of an index out of range
        cpu = "run it with runtime.device=cpu, whose error names the operation"
        return f"the GPU met an invalid value{when}: {line}; {cpu}"
    for reason, remedy in _REPEATED.items():
        if reason in line:
            return f"the GPU failed{when}: {line}; {remedy}"
    resumed = "" if step is None else ", which goes on from the last checkpoint"
    return f"the GPU failed{when}: {line}; run the same command again{resumed}"
