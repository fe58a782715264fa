"""Errors of a GPU are recognised by their texts, each with its remedy."""

import pytest

from a2cap.pipeline.runtime.device_errors import device_failure

LOST = "the GPU failed{}: {}; run the same command again"
RESUMED = ", which goes on from the last checkpoint"


@pytest.mark.parametrize(
    "line",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA driver error: unknown error",
        "Triton Error [CUDA]: unspecified launch failure",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error",
    ],
)
def test_a_lost_gpu_is_recognised_whichever_library_reports_it(line):
    error = RuntimeError(f"{line}\nCUDA kernel errors might be reported later")
    assert device_failure(error) == LOST.format("", line)
    assert device_failure(error, step=3) == LOST.format(" after step 3", line) + RESUMED


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "CUDA error: no kernel image is available for execution on the device",
            "the GPU failed after step 0: {}; install a torch for this GPU, or set "
            "runtime.device=cpu",
        ),
        (
            "HIP error: invalid device ordinal",
            "the GPU failed after step 0: {}; set runtime.device to a GPU that the machine has",
        ),
        (
            "CUDA error: device-side assert triggered",
            "the GPU met an invalid value after step 0: {}; run it with runtime.device=cpu, whose "
            "error names the operation",
        ),
    ],
)
def test_an_error_that_a_rerun_repeats_has_another_remedy(line, text):
    assert device_failure(RuntimeError(line), step=0) == text.format(line)


@pytest.mark.parametrize(
    "line",
    [
        "Triton Error [CUDA]: out of memory",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "HIP out of memory. Tried to allocate 2.50 GiB",
        "MPS backend out of memory (MPS allocated: 1 GB)",
    ],
)
def test_a_lack_of_memory_is_recognised_on_each_kind_of_gpu(line):
    assert device_failure(RuntimeError(line), step=0) == (
        f"out of GPU memory after step 0: {line}; lower the batch size, or use a larger GPU"
    )


@pytest.mark.parametrize(
    ("error", "size"),
    [("Unable to allocate 9 GiB", "Unable to allocate 9 GiB"), ("", "no size is known")],
)
def test_a_lack_of_memory_of_numpy_is_reported(error, size):
    assert device_failure(MemoryError(error)) == (
        f"out of memory: {size}; lower the batch size, or end other programs"
    )


@pytest.mark.parametrize("text", ["", "no NCCL error", "CUDA errors", "[Errno 12] out of memory"])
def test_other_errors_are_not_those_of_a_gpu(text):
    assert device_failure(RuntimeError(text)) is None
