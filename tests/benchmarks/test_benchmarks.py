import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from a2cap.model.captioners import kinds
from benchmarks import captioners, measure
from benchmarks.gpu_results import BEGIN, END, idle_share, kernel_figures, with_table
from benchmarks.measure import Timing, interleaved, measured

ROOT = Path(__file__).parents[2]


def output(name: str, *options: str) -> str:
    """Run a benchmark in an empty folder, check that it leaves no files, return its output."""
    with TemporaryDirectory() as folder:
        finished = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", *options],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        errors = re.sub(r".*emulates bfloat16.*\n", "", finished.stderr)
        assert (finished.returncode, errors) == (0, "")
        assert list(Path(folder).iterdir()) == []
    return finished.stdout


TABLES = {
    "adapted_captions": ["blip of 0 million parameters", "llava of 0", "with attention"],
    "alignment_study": [
        "fusions gate 1",
        "Planted companions, after XE",
        "by group of words",
    ],
    "claims": [
        "2 of 2: depth gate 0",
        "2 of 2: trainings twice the updates 0",
        "2 of 3: flickr8k depth gate 0",
        "photo masks: attention, aligned, random, gain, permuted",
        "gru additive 0",
        "# What the papers claim",
    ],
    "captioners": ["2 of 2: spatial, gate", "| spatial | none |", "true captions"],
    "scale": ["500 images", "random reads", "a2 status", "SCST, to batch 100"],
    "preprocess": ["all processes", "CPU time", "peak memory"],
    "report": ["report of 50 images, 5 embedded", "size, MB"],
}


LONG = ("claims",)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_the_quick_form_prints_the_machine_and_its_tables(name):
    if name in LONG and "A2_LONG" not in os.environ:
        pytest.skip("takes more than a minute: set A2_LONG=1")
    first, *lines = output(name, "--quick").splitlines()
    assert first.startswith("machine: ")
    for word in ("cores", "GiB", "torch", "threads", "load"):
        assert word in first
    for text in TABLES[name]:
        assert any(text in line for line in lines), text


def test_every_benchmark_is_tested():
    modules = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    # have tests of their own
    elsewhere = {
        "__init__",
        "bench",
        "decoder_only",
        "encoder",
        "gpu_check",
        "gpu_decoding",
        "gpu_results",
        "gpu_resume",
        "photos_data",
        "photos_table",
        "ssdlite",
    }
    parts = {"bart", "extract", "self_critical", "store", "train", "measure"}  # of bench
    by_hand = {"photos", "metrics"}  # need photographs, and minutes of Java
    assert modules == {*TABLES, *elsewhere, *by_hand, *parts}


def test_forms_alternate_and_warm_up_rounds_do_not_count():
    calls: list[str] = []
    forms = {name: lambda name=name: calls.append(name) for name in "ab"}
    timings = interleaved(forms, rounds=2, before=lambda: calls.append("-"))
    assert "".join(calls) == "-a-b" * 3
    assert [len(timing.rounds) for timing in timings.values()] == [2, 2]


def test_median_and_spread_are_those_of_the_rounds():
    timing = Timing((0.3, 9.0, 0.125))
    assert (timing.median, timing.spread) == (0.3, "0.125-9")


def test_every_kind_of_captioner_has_a_row():
    fields = {field for row in captioners.KINDS.values() for field in row}
    assert {f"kind={kind}" for kind in kinds.KINDS} == {f for f in fields if f[:5] == "kind="}


def test_a_kind_without_attention_has_no_row_with_alignment():
    assert captioners.fusions_of("nic") == ("none",)
    assert captioners.fusions_of("show-attend-tell, hard") == ("none", "gate")


def test_rows_of_earlier_calls_are_read_again(tmp_path):
    path = tmp_path / "rows-40-1-8.json"
    assert captioners.read_rows(path) == {}
    path.write_text('[["gru", "none", ["gru", "none", "0.5"]]]')
    assert captioners.read_rows(path) == {("gru", "none"): ["gru", "none", "0.5"]}


def test_rows_that_go_on_from_another_follow_it():
    assert captioners.STARTS.keys() | set(captioners.STARTS.values()) <= captioners.KINDS.keys()
    names = sorted(captioners.STARTS, key=captioners.depth)
    assert [captioners.depth(name) for name in names] == [1, 2]
    assert captioners.STARTS[names[1]] == names[0]
    assert captioners.depth(captioners.STARTS[names[0]]) == 0


def test_a_child_that_still_has_its_parents_memory_is_not_counted(tmp_path, monkeypatch):
    """As a child has between vfork and exec: on a busy machine for long enough to be seen."""
    pages = {"1": "900 600 100", "2": "900 600 100", "3": "70 50 10", "4": "30 20 0"}
    children = {"1": "2 3", "3": "4 5"}  # 5 has ended
    for process, text in pages.items():
        folder = tmp_path / process / "task" / process
        folder.mkdir(parents=True)
        (tmp_path / process / "statm").write_text(f"{text} 0 0 0 0")
        (folder / "children").write_text(children.get(process, ""))
    monkeypatch.setattr(measure, "_PROC", tmp_path)
    page = os.sysconf("SC_PAGE_SIZE") / 2**20
    assert measure.resident_memory(1) == pytest.approx((670 * page, 560 * page))


@pytest.mark.slow
def test_memory_of_a_process_includes_short_allocations():
    least, most = (measured(partial(allocate, size)).unmapped for size in (0, 200))
    assert most >= least + 190


def allocate(mebibytes):
    held = b"\1" * (mebibytes << 20)
    time.sleep(0.1)  # the memory is measured 50 times a second
    return len(held)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("busy", "share"),
    [
        ([], 0),
        ([(3, 5)], 0),
        ([(6, 10), (0, 2), (1, 4)], 0.2),
        ([(0, 10), (1, 2), (11, 12), (12, 20)], 0.05),
    ],
)
def test_a_gpu_is_idle_between_computations(busy, share):
    assert idle_share(busy) == pytest.approx(share)


def test_kernels_of_a_gpu_are_summed_by_name_and_copies_apart():
    kernels = [("gemm", 0, 3000), ("Memcpy HtoD", 2000, 4000), ("gemm", 6000, 7000)]
    kernels += [(f"small {number}", 7000, 7000 + number) for number in range(1, 11)]
    figures = kernel_figures(kernels)
    assert (figures["kernels"], figures["copy_ms"]) == (13, 2.0)
    assert figures["kernel_ms"] == pytest.approx(4.055)
    assert figures["idle"] == pytest.approx(2000 / 7010)
    assert list(figures["top_kernels_ms"])[:3] == ["gemm", "Memcpy HtoD", "small 10"]
    assert len(figures["top_kernels_ms"]) == 10


def test_the_table_of_a_gpu_has_a_row_for_each_measurement_and_failure():
    update = {"seconds_per_update": 0.02, "extrapolated_epoch_minutes": 3.8, "measured_updates": 10}
    results = {
        "machine": ["Some CPU", "16 cores", "128 GiB", "H100", "torch 2.15", "16 threads"],
        "device": "cuda",
        "cross-entropy": {
            "10 images, fp32": {**update, "idle": 0.875, "kernels": 1200, "peak_gib": 1.42},
            "10 images, fp32, compiled": {"skipped": "no time left to compile"},
            "check_seconds": 9.0,
        },
        "process group": {"failed": "RuntimeError: no NCCL", "check_seconds": 1.0},
    }
    rows = with_table(f"Before.\n{BEGIN}\nold\n{END}\nAfter.", results).splitlines()
    assert rows == [
        "Before.",
        BEGIN,
        "By `python -m benchmarks.gpu_check` on Some CPU, 16 cores, 128 GiB, H100, torch 2.15:",
        "",
        "| part | measured | GPU idle | kernels | GiB |",
        "|---|---|---:|---:|---:|",
        "| cross-entropy: 10 images, fp32 | 0.0200 s an update, 3.8 min an epoch of COCO, "
        "extrapolated | 88% | 1200 | 1.4 |",
        "| cross-entropy: 10 images, fp32, compiled | no time left to compile |  |  |  |",
        "| process group | failed: RuntimeError: no NCCL |  |  |  |",
        END,
        "After.",
    ]
