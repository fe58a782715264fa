"""Tests of docs/guide/slurm.md: its script with stand-ins for Slurm, submitit on this machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from a2cap.data.features.store import FeatureStore
from a2cap.data.scenes.generate import write_scenes

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize(
    ("code", "requeued", "ends"), [(0, [], 0), (3, [], 0), (143, ["requeue 7_2"], 143), (1, [], 1)]
)
def test_the_script_requeues_a_stopped_part_and_accepts_skipped_images(
    tmp_path, code, requeued, ends
):
    script = re.search(r"```sh\n(#!/bin/bash\n.*?)```", (DOCS / "guide/slurm.md").read_text(), re.S)
    for name, line in (("srun", f"exit {code}"), ("scontrol", f'echo "$@" >>{tmp_path}/calls')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    array = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    path = f"{tmp_path}:{os.environ['PATH']}"
    ended = subprocess.run(["bash", "-c", script[1]], env={"PATH": path, **array}, check=False)
    assert ended.returncode == ends
    calls = tmp_path / "calls"
    assert (calls.read_text().splitlines() if calls.exists() else []) == requeued


@pytest.mark.slow
def test_submitit_extracts_all_shards_on_this_machine(tmp_path):
    pytest.importorskip("submitit", reason='submitit is not installed: pip install "a2cap[slurm]"')
    write_scenes(tmp_path / "scenes", count=4, seed=0, side=96)
    settings = ("extract.weights=scenes", "extract.min_side=224", "runtime.device=cpu")
    options = [word for setting in settings for word in ("--set", setting)]
    images = ["--images", "scenes/images", "--output", "features"]
    command = [sys.executable, DOCS / "submitit_extract.py", "2", *images, *options]
    environment = {**os.environ, "SUBMITIT_CLUSTER": "local"}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert len(FeatureStore(tmp_path / "features" / "features.lmdb")) == 4
