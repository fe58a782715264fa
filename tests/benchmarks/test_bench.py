"""Short forms of all benchmarks, the rows of pages, and the check of a GPU, on tiny sizes."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from benchmarks import bench, gpu_check
from benchmarks.bench import Figure, moved, with_results
from benchmarks.gpu_results import table

STEP = Figure("step", 4.4, 1.31, "one pass per loss", 0.67, "fp32 matrix products")


def test_a_figure_states_its_time_its_reference_and_its_peak():
    assert STEP.text == "4.4 s: 1.3 times as fast as one pass per loss, 67% of fp32 matrix products"
    assert Figure("reward", 0.00512, 35.2, "Python").text == "5.1 ms: 35 times as fast as Python"
    assert Figure("demo", 183.0).text == "3 min 3 s"


def test_figures_that_moved_by_more_than_a_tenth_are_named():
    before = [vars(STEP), vars(Figure("demo", 100.0)), vars(Figure("gone", 1.0))]
    still = Figure("step", 44.0, 1.2, "one pass per loss")  # another machine, nearly equal ratio
    assert moved(before, [still, Figure("demo", 105.0), Figure("new", 1.0)]) == []
    slower = Figure("step", 4.4, 1.0, "one pass per loss")
    assert moved(before, [slower, Figure("demo", 50.0)]) == [
        f"moved: step: ratio -24%, {STEP.text} before",
        "moved: demo: speed +100%, 1 min 40 s before",
    ]


@pytest.mark.parametrize(("short", "text"), [(True, "4.4 s"), (False, STEP.text)])
def test_rows_and_machine_of_a_page_follow_the_results(short, text):
    machine = ["Some CPU", "2 cores", "24 GiB", "no GPU", "torch 2.15", "2 threads", "load 0.1"]
    page = "By `make bench` or not, on X:\n| step, 50 regions (`x.py`) | old |\n| other | 1 |\n"
    assert with_results(page, {"machine": machine, "figures": [vars(STEP)]}, short=short) == (
        "By `make bench` or not, on Some CPU, 2 cores, 24 GiB, no GPU, torch 2.15:\n"
        f"| step, 50 regions (`x.py`) | {text} |\n| other | 1 |\n"
    )


def test_alternatives_are_in_the_text_and_in_the_column_of_their_name():
    figure = Figure("step", 0.5, others={"transformers": 1.62, "HDF5": 0.8})
    assert figure.text == "500 ms: 1.6 times as fast as transformers, 0.8 times as fast as HDF5"
    page = "| what | a2 | transformers | others |\n|---|---|---|---|\n| step | – | – | – |"
    results = {"machine": [], "figures": [vars(figure)]}
    written = with_results(page, results, short=True)
    assert written.splitlines()[-1] == "| step | 500 ms | 1.6 × | HDF5: 0.8 × |"


@pytest.mark.parametrize("page", bench.PAGES, ids=lambda page: page.name)
def test_the_pages_have_the_committed_results(page):
    path = bench.RESULTS / "cpu.json"
    if not path.exists():
        pytest.skip("no results are committed; run make bench")
    text, short = page.read_text(), bench.PAGES[page]
    assert with_results(text, json.loads(path.read_text()), short=short) == text


@pytest.mark.slow
def test_the_quick_form_writes_figures_with_ratios_and_peaks(tmp_path):
    groups = ("training", "alignment", "alternatives", "store", "sampling", "extraction", "scenes")
    options = [word for name in groups for word in ("--only", name)]
    output = tmp_path / "results" / "cpu.json"
    ran = CliRunner().invoke(bench.main, ["--quick", *options, "--output", str(output)])
    assert ran.exit_code == 0, ran.output
    results = json.loads(output.read_text())
    assert {"machine", "date", "commit", "versions", "peaks"} <= results.keys()
    assert set(results["peaks"]) == {bench.FP32, bench.BF16, bench.MEMORY}
    for figure in results["figures"]:
        ratios = [figure["ratio"], *figure["others"].values()]
        compared = any(ratio is not None and ratio > 0 for ratio in ratios)
        assert compared or figure["what"] == f"write {bench.SCENES:,} scenes"
        assert figure["seconds"] > 0
    assert "training step, 2+2 layers of 128" in ran.output
    for text in ("CPU time by operator", "same captions: 2 of 2", "alignment adds", "RoIPool"):
        assert text in ran.output
    for printed, limit in (
        ("training step; gradients differ by ", 1e-4),
        ("samples differ by ", 1e-4),
        ("values differ by ", 1e-9),
    ):
        assert float(ran.output.partition(printed)[2].split()[0]) < limit


@pytest.mark.slow
def test_every_check_of_a_gpu_runs_on_a_cpu_in_tiny_sizes(tmp_path):
    output = tmp_path / "check.json"
    options = ["--device", "cpu", "--quick", "--output", str(output)]
    ran = CliRunner().invoke(gpu_check.main, options)
    assert ran.exit_code == 0, ran.output
    results = json.loads(output.read_text())
    assert results.keys() >= gpu_check.CHECKS.keys()
    for task in ("cross-entropy", "self-critical"):
        resumed = results["resume"][task]
        assert resumed["differing"] == 0
        assert 0 < resumed["resumed_at"] < resumed["updates"] == 40
    assert results["grid"].keys() == {
        *("efficientnet-lite2, exact", "efficientnet-lite2, mixed"),
        *("resnet18, exact", "resnet18, mixed", "check_seconds"),
    }
    assert results["captured decoding"]["equal_captions"] == [2, 10]
    epochs = results["self-critical"]["2 images, fp32"]
    assert epochs["updates_per_epoch"] == 56_644
    assert epochs["extrapolated_epoch_minutes"] > 0
    assert "| self-critical: 2 images, fp32 |" in table(results)


def test_on_a_bare_machine_the_check_of_a_gpu_names_the_missing_packages_in_a_line():
    # -S: without installed packages
    command = [sys.executable, "-S", "-P", "-m", "benchmarks.gpu_check"]
    environment = {"PYTHONPATH": f"{gpu_check.ROOT / '.typing'}:{gpu_check.ROOT}"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        "benchmarks need torch, torchvision, numpy, PIL, click, cv2, filelock, fsspec, h5py, isal, "
        "lmdb, pycocoevalcap, pydantic, safetensors, simplejpeg, tensorboard, xxhash, yaml; "
        "install them, or a2 as in README.md\n"
    )


def test_a_capture_which_may_leave_the_gpu_unusable_is_the_last_check():
    assert [*gpu_check.CHECKS][-2:] == ["compiled decoding", "captured decoding"]


@pytest.mark.slow
def test_a_failed_check_of_a_gpu_is_reported_after_the_others(tmp_path, monkeypatch):
    def fail(setting):
        raise RuntimeError("out of luck")

    output = tmp_path / "check.json"

    def read(setting):  # a run that is killed here has the first
        return {"before": json.loads(output.read_text())["one"]["failed"]}

    monkeypatch.setattr(gpu_check, "CHECKS", {"one": fail, "two": read})
    ran = CliRunner().invoke(gpu_check.main, ["--device", "cpu", "--output", str(output)])
    assert (ran.exit_code, ran.output.splitlines()[-1]) == (1, "Error: failed: one")
    results = json.loads(output.read_text())
    assert results["one"]["failed"] == results["two"]["before"] == "RuntimeError: out of luck"
