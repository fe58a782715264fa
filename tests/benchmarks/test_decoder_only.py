"""The study of aligned self-attention in a small form, and its measures."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("transformers", reason="needs a2cap[transformers]")

from a2cap.data.scenes.objects import SceneObject
from a2cap.data.scenes.scene import make_scene
from benchmarks import decoder_only


def test_cells_whose_centre_is_in_a_box_are_those_of_its_object():
    scene = make_scene(0, seed=0, side=48)
    parts = {"category": "ball", "colour": "red", "size": "small", "texture": "plain"}
    box = SceneObject(**parts, box=(0.0, 8.0, 13.0, 15.0))
    object.__setattr__(scene, "objects", (box,))
    [cells] = decoder_only._cells(scene, 48).T
    assert np.flatnonzero(cells).tolist() == [6, 7]  # of the second of six rows


def test_intervals_are_of_differences_by_seed():
    def trial(plain, aligned):
        ways = {"none": plain, "aligned": aligned, "aligned, theta frozen": aligned}
        return {
            way: {"all/attention": value, "all/aligned": value + 0.1, "loss": 1.0}
            if way != "none"
            else {"all/attention": value, "loss": 1.0}
            for way, value in ways.items()
        }

    results = {"trials": {"LLaVA 0": trial(0.2, 0.3), "LLaVA 1": trial(0.4, 0.5)}}
    plain, aligned, _, untrained, *_ = decoder_only.table(results)
    assert plain[:4] == ["LLaVA, none", "2", "0.300 ± 1.271", "–"]
    assert aligned[2:5] == ["0.400 ± 1.271", "0.100 ± 0.000", "0.500 ± 1.271"]
    assert aligned[5:] == ["0.200 ± 0.000", "0.100 ± 0.000", "–", "1.000 ± 0.000"]
    assert untrained == ["PaliGemma, none", "0", *"–––––––"]


@pytest.mark.slow
def test_a_small_study_trains_both_models_in_three_ways_and_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(decoder_only, "Extent", lambda: decoder_only.QUICK)
    output = ["--output", str(tmp_path / "results.json")]
    finished = CliRunner().invoke(decoder_only.main, output, catch_exceptions=False)
    assert finished.output.count(": done") == 2
    results = json.loads((tmp_path / "results.json").read_text())
    for name in ("LLaVA 0", "PaliGemma 0"):
        for way, values in results["trials"][name].items():
            assert 0 < values["all/chance"] < 1 and 0 < values["all/attention"] < 1
            assert ("all/aligned" in values) == ("all/evidence" in values) == (way != "none")
            assert values["loss"] > 0
    del results["trials"]["PaliGemma 0"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    resumed = CliRunner().invoke(decoder_only.main, output, catch_exceptions=False)
    assert resumed.output.count(": done") == 1 and "PaliGemma 0: done" in resumed.output
