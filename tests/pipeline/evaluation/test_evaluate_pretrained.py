"""Evaluation of a model of transformers on a split: captions, scores, attention and report."""

import csv
import shutil

import pytest
from click.testing import CliRunner

transformers = pytest.importorskip("transformers", reason="needs a2cap[transformers]")

from a2cap.data.captions.attention_file import AttentionFile  # noqa: E402
from a2cap.data.errors import ConfigError, InputError  # noqa: E402
from a2cap.data.files.json_file import read_json  # noqa: E402
from a2cap.pipeline.cli.main import cli  # noqa: E402
from tests.data.messages import message_of  # noqa: E402
from tests.model.adapting.vision_language import build  # noqa: E402


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "qwen"
    small = build("qwen2_vl")
    small.model.save_pretrained(folder)
    small.processor.save_pretrained(folder)
    return folder


@pytest.fixture
def artifacts(experiment, tmp_path):
    """Copy the preprocessed captions alone: features are not needed."""
    folder = tmp_path / "artifacts"
    shutil.copytree(experiment.artifacts / "preprocess", folder / "preprocess")
    return folder


@pytest.mark.parametrize("attention", ["all", "report"])
def test_a_split_is_captioned_scored_and_shown_with_attention(
    experiment, artifacts, saved, without_meteor, attention
):
    words = ["evaluate", "-c", experiment.config_file, "--artifacts", artifacts, "--model", saved]
    settings = ["spice=false", "max_length=5", f"attention={attention}", "report_images=2"]
    settings.append("erasure=2")
    words += [word for setting in settings for word in ("--set", f"evaluate.{setting}")]
    answer = CliRunner().invoke(cli, list(map(str, words)), catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    [folder] = (artifacts / "evaluate").glob("*/")
    content = read_json(folder / "metrics.json")
    count = content["n"]
    assert count == content["total"] == len(read_json(folder / "captions.json")) > 1
    assert "CIDEr" in content["metrics"]
    assert content["provenance"]["model"] == (
        "Qwen2VLForConditionalGeneration, a model of transformers with the prompt 'Describe the "
        "image in one sentence.'."
    )
    rows = AttentionFile(folder / "attention.h5")
    assert len(list(rows)) == (count if attention == "all" else 2)
    name = next(iter(rows))
    # scenes of 96 x 96 pixels: a square grid of merged patches
    assert 0 < rows[name].original.sum(axis=1).max() <= 1.01
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert '"grid":{"rows":' in page.replace(" ", "")
    [attention, random] = content["erasure"]
    assert [attention["order"], random["order"]] == ["attention", "random"]
    assert attention["images"] == 2 and attention["words"] == random["words"] > 2
    assert attention["comprehensiveness_low"] <= attention["comprehensiveness"]
    assert attention["all_removed"] == random["all_removed"]
    assert "Is the attention true?" in page and "deletion, nats over share removed" in page
    compared = CliRunner().invoke(cli, ["compare", str(folder), str(folder)])
    assert compared.exit_code == 0 and "CIDEr" in compared.stdout
    again = CliRunner().invoke(cli, list(map(str, words)), catch_exceptions=False)
    assert again.exit_code == 0 and len(list((artifacts / "evaluate").glob("*/"))) == 1


def test_settings_of_the_other_kind_of_model_are_refused(experiment, saved, tmp_path):
    def check(*overrides):
        with experiment.open(*overrides) as opened:
            opened.declared["evaluate"]._model()

    assert message_of(check, "evaluate.prompt=a", error=ConfigError) == (
        "evaluate.prompt is 'a', but captioners of a2 read no text; leave it out, or set "
        "evaluate.model"
    )
    assert message_of(check, "evaluate.erasure=3", error=ConfigError) == (
        "evaluate.erasure is 3, but is measured of a model of transformers alone; leave it out, "
        'and run "a2 analyze"'
    )
    check("evaluate.erasure=10")  # as the file of a finished run states it
    both = (f"evaluate.model={saved}", f"evaluate.ensemble=[{tmp_path}]")
    assert message_of(check, *both, error=ConfigError) == (
        "evaluate.ensemble cannot extend a model of transformers, evaluate.model; leave one of "
        "them out"
    )

    def prepare(path):
        with experiment.open(f"evaluate.model={path}") as opened:
            opened.stage("evaluate")

    assert message_of(prepare, tmp_path, error=InputError) == (
        f"evaluate.model names no model of transformers: {str(tmp_path)!r}; name a folder of "
        "save_pretrained, or leave it out to evaluate the experiment's captioner"
    )


def test_analyze_erases_the_first_references_of_a_split(
    experiment, artifacts, saved, tmp_path, monkeypatch
):
    references = {name: ["w1 w2"] for name in experiment_images(artifacts)}
    where = "a2cap.pipeline.analysis.faithfulness.load_reference_tokens"
    monkeypatch.setattr(where, lambda path: references)
    options = ["-c", experiment.config_file, "--artifacts", artifacts, "--output", tmp_path / "a"]
    words = ["analyze", saved, *options, "--erasure", "2"]
    answer = CliRunner().invoke(cli, list(map(str, words)), catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.startswith("erasure, 2 images, nats per word [95 % over images]\norder ")
    with (tmp_path / "a" / "erasure.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["order"], row["words"]) for row in rows] == [
        ("qwen", "attention", "4"),
        ("qwen", "random", "4"),
    ]
    assert float(rows[0]["all_removed"]) == float(rows[1]["all_removed"])
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        *("erasure.csv", "erasure.png", "erasure_curves.csv", "runs.csv")
    ]
    words[-1] = "0"
    answer = CliRunner().invoke(cli, list(map(str, [*words, "--force"])), catch_exceptions=False)
    assert answer.stderr.endswith(
        "a2: nothing was measured of 'qwen' on 4 images of split 'val'; raise --erasure, or name "
        "another --split\n"
    )


def experiment_images(artifacts):
    [folder] = (artifacts / "preprocess").glob("*/")
    return read_json(folder / "references.json")
