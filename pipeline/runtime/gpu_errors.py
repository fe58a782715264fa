"""Errors of a device by their texts, since torch raises most of them as a plain RuntimeError."""

import re

_GPU = re.compile(r"(CUDA|cuDNN|NCCL|Triton) (driver )?error\b|CUDA out of memory", re.IGNORECASE)
_CPU_MEMORY = re.compile(r"DefaultCPUAllocator: .* allocate (\d+) bytes")
_MEMORY = re.compile(r"out of memory|_ALLOC_FAILED")


def gpu_failure(error: Exception, *, step: int | None = None) -> str | None:
    """Return what a GPU, or the memory of a CPU, failed in and what to do; None for other errors.

    step: of a training, which has checkpoints.
    """
    text = str(error)
    if allocation := _CPU_MEMORY.search(text):
        size = f"{int(allocation[1]):,} bytes at once"
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
    resumed = "" if step is None else ", which goes on from the last checkpoint"
    return f"the GPU failed{when}: {line}; run the same command again{resumed}"
