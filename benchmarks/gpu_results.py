"""Results of the check of a GPU: kernels of a profile, and the table of docs/performance.md."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

BEGIN, END = "<!-- gpu_check -->", "<!-- end of gpu_check -->"
"""Lines of the page around the table."""
_TOP = 10

Kernel = tuple[str, float, float]
"""Name, start and end in microseconds; a copy between memories is one too."""


def kernels_of(form: Callable[[], object], device: torch.device) -> dict[str, object]:
    """Return the figures of `kernel_figures` for a form on a GPU; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        form()
        torch.cuda.synchronize(device)
    events = [e for e in profiled.events() or () if e.device_type == DeviceType.CUDA]
    return kernel_figures([(e.name, e.time_range.start, e.time_range.end) for e in events])


def kernel_figures(kernels: Sequence[Kernel]) -> dict[str, object]:
    """Return the idle share, the number of kernels, and milliseconds: of all, copies, the top ten.

    The milliseconds of copies are not among those of kernels.
    """
    times: defaultdict[str, float] = defaultdict(float)
    for name, start, end in kernels:
        times[name] += end - start
    copies = sum(time for name, time in times.items() if name.startswith("Memcpy"))
    top = sorted(times.items(), key=lambda item: -item[1])[:_TOP]
    return {
        "idle": idle_share([(start, end) for _, start, end in kernels]),
        "kernels": len(kernels),
        "kernel_ms": (sum(times.values()) - copies) / 1000,
        "copy_ms": copies / 1000,
        "top_kernels_ms": {name: time / 1000 for name, time in top},
    }


def idle_share(busy: Sequence[tuple[float, float]]) -> float:
    """Return the share of idle time between the first start and the last end; 0 without any.

    busy: (start, end) of each computation, in any unit; they may overlap.
    """
    if not busy:
        return 0.0
    ordered = sorted(busy)
    first, reached = ordered[0][0], ordered[0][0]
    idle = 0.0
    for start, end in ordered:
        idle += max(0.0, start - reached)
        reached = max(reached, end)
    return idle / (reached - first)


def with_table(page: str, results: Mapping[str, Any]) -> str:
    """Return the page with the table of results between its marks."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"


def table(results: Mapping[str, Any]) -> str:
    """Return the parts in Markdown, one row per measurement."""
    lines = [f"By `python -m benchmarks.gpu_check` on {', '.join(results['machine'][:5])}:", ""]
    lines += ["| part | measured | GPU idle | kernels | GiB |", "|---|---|---:|---:|---:|"]
    for part, findings in results.items():
        if not isinstance(findings, Mapping):
            continue
        measured = {name: row for name, row in findings.items() if isinstance(row, Mapping)}
        for name, row in measured.items() or [("", findings)]:
            idle = f"{row['idle']:.0%}" if row.get("idle") is not None else ""
            peak = f"{row['peak_gib']:.1f}" if row.get("peak_gib") is not None else ""
            title = f"{part}: {name}" if name else part
            lines.append(
                f"| {title} | {_summary(row)} | {idle} | {row.get('kernels', '')} | {peak} |"
            )
    return "\n".join(lines)


_FORMS = {
    "images_per_second": "{:.1f} images/s",
    "seconds_per_update": "{:.4f} s an update",
    "extrapolated_epoch_minutes": "{:.1f} min an epoch of COCO, extrapolated",
    "extrapolated_test_seconds": "{:.1f} s for 5,000 captions, extrapolated",
    "sampled_captions_per_second": "{:.0f} captions/s sampled",
    "equal_captions": "{0[0]} best and {0[1]} sampled captions equal",
    "differing": "{} tensors differ after a kill",
    "resumed_at": "resumed after update {}",
    "backend": "{} with one rank",
    "skipped": "{}",
    "failed": "failed: {}",
}
"""Measurement -> its text in the table; others are in the file of results alone."""


def _summary(row: Mapping[str, Any]) -> str:
    return ", ".join(text.format(row[name]) for name, text in _FORMS.items() if name in row)
