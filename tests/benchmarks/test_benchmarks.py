import importlib
import runpy
import subprocess
import sys
from pathlib import Path

import click
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def run(name: str, *options: str, folder: Path) -> str:
    """What a benchmark prints, run in an empty folder."""
    finished = subprocess.run(
        [sys.executable, FOLDER / name, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert list(folder.iterdir()) == []
    return finished.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "promised"),
    [
        ("demo.py", ["train-xe", "seeing by blind", "relations"]),
        ("store.py", ["LMDB is faster by", ".npz", "HDF5"]),
        (
            "extract.py",
            [
                "mixed, 100 boxes",
                "largest feature error",
                "same regions",
                "peak memory of the process",
            ],
        ),
        (
            "train.py",
            [
                "tokens/s",
                "of peak",
                "ours, bf16",
                "cached is faster by",
                "grows with regions",
                "of 1 beams",
            ],
        ),
        ("self_critical.py", ["our CIDEr-D is faster by", "our step is faster by"]),
        (
            "throughput.py",
            ["cross-entropy: 1+2 layers", "self-critical: 1+2 layers", "bf16, eager", "GPU idle"],
        ),
        ("evaluate.py", ["of pycocoevalcap", "equal to 1e-06: Bleu_1"]),
        (
            "alignment_study.py",
            ["fusions gate 1", "Planted companions, after SCST", "grounding by group of words"],
        ),
        ("detector.py", ["unseen scenes", "recall of 36", "s per image"]),
        ("scenes.py", ["images/s", "20,000 images", "1 process", "is faster by"]),
        ("report.py", ["report of 50 images, 5 embedded", "size, MB"]),
    ],
)
def test_the_quick_form_names_the_machine_then_prints_its_tables(name, promised, tmp_path):
    first, *tables = run(name, "--quick", folder=tmp_path).splitlines()
    assert first.startswith("machine: ")
    for word in ("cores", "GiB", "torch", "threads", "load"):
        assert word in first
    for text in promised:
        assert any(text in line for line in tables)


@pytest.mark.slow
def test_a_plain_training_step_has_our_gradients_and_a_plain_search_our_captions(tmp_path):
    printed = run("train.py", "--quick", folder=tmp_path)
    difference = printed.partition("gradients differ by ")[2].split()[0]
    assert float(difference) < 1e-4
    assert "same captions: 2 of 2" in printed


@pytest.mark.slow
def test_a_plain_self_critical_step_has_our_gradients_and_plain_rewards_are_ours(tmp_path):
    printed = run("self_critical.py", "--quick", folder=tmp_path)
    assert float(printed.partition("samples differ by ")[2].split()[0]) < 1e-4
    assert float(printed.partition("values differ by ")[2].split()[0]) < 1e-9


@pytest.mark.slow
def test_plain_selection_finds_our_regions(tmp_path):
    printed = run("extract.py", "--quick", folder=tmp_path)
    table = printed.partition("pruned against one NMS per class")[2]
    alike = [line.split()[-3:] for line in table.splitlines() if " of " in line[-12:]]
    assert len(alike) == 2
    assert all(found == expected for found, _, expected in alike)


@pytest.mark.slow
def test_what_the_benchmarks_share_prints_nothing_when_it_is_run(tmp_path):
    assert run("measure.py", folder=tmp_path) == ""


def test_forms_take_turns_and_rounds_that_warm_up_do_not_count(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    measure = importlib.import_module("measure")
    calls: list[str] = []
    forms = {name: lambda name=name: calls.append(name) for name in "ab"}
    timings = measure.interleaved(forms, rounds=2, before=lambda: calls.append("-"))
    assert "".join(calls) == "-a-b" * 3
    assert [len(timing.rounds) for timing in timings.values()] == [2, 2]


def test_the_median_and_the_spread_are_those_of_the_rounds(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    timing = importlib.import_module("measure").Timing((0.3, 9.0, 0.125))
    assert (timing.median, timing.spread) == (0.3, "0.125-9")


def test_peak_memory_counts_what_was_held_for_a_moment(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    measure = importlib.import_module("measure")
    little = measure.peak_memory(lambda: None)
    assert measure.peak_memory(lambda: b"\1" * (200 << 20)) >= little + 190


@pytest.mark.slow
def test_a_gpu_is_idle_where_nothing_is_computed_and_only_there(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    idle_share = runpy.run_path(str(FOLDER / "throughput.py"))["idle_share"]
    assert idle_share([]) == 0
    assert idle_share([(3, 5)]) == 0
    assert idle_share([(6, 10), (0, 2), (1, 4)]) == pytest.approx(0.2)
    assert idle_share([(0, 10), (1, 2), (11, 12), (12, 20)]) == pytest.approx(0.05)


@pytest.mark.slow
def test_a_metric_unlike_pycocoevalcaps_is_refused(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    evaluate = runpy.run_path(str(FOLDER / "evaluate.py"))
    right = dict.fromkeys(evaluate["SCORED"], 0.5)
    evaluate["check_equal"]({"pycocoevalcap": right, "ours": right})
    with pytest.raises(click.ClickException) as caught:
        evaluate["check_equal"]({"pycocoevalcap": right, "ours": {**right, "CIDEr": 0.6}})
    assert caught.value.message == (
        "CIDEr of ours is 0.6, of pycocoevalcap 0.5; mend a2cap.pipeline.metrics.score"
    )
