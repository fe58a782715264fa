"""Evaluation of a model of transformers on a split: captions, scores, attention and report."""

import csv
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

transformers = pytest.importorskip("transformers", reason="needs a2cap[transformers]")

from a2cap.data.captions.attention_file import AttentionFile  # noqa: E402
from a2cap.data.captions.caption_file import CaptionFile  # noqa: E402
from a2cap.data.errors import ConfigError, InputError  # noqa: E402
from a2cap.data.files.json_file import read_json  # noqa: E402
from tests.data.messages import message_of  # noqa: E402
from tests.experiments import a2  # noqa: E402
from tests.model.adapting.vision_language import build  # noqa: E402
from tests.model.test_faithfulness import tau_b  # noqa: E402


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


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["all", "report"])
def test_a_split_is_captioned_scored_and_shown_with_attention(
    experiment, artifacts, saved, without_meteor, attention
):
    words = ["evaluate", "-c", experiment.config_file, "--artifacts", artifacts, "--model", saved]
    settings = ["spice=false", "max_length=5", f"attention={attention}", "report_images=2"]
    settings.append("erasure=2")
    words += [word for setting in settings for word in ("--set", f"evaluate.{setting}")]
    a2(*words, code=0)
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
    assert len(re.findall(r'"certificates":\[\[[\d.]+,[\d.]+\]', page)) == 2
    assert '"grid":{"rows":' in page.replace(" ", "")
    [attention, random] = content["erasure"]
    assert [attention["order"], random["order"]] == ["attention", "random"]
    assert attention["images"] == 2 and attention["words"] == random["words"] > 2
    assert attention["comprehensiveness_low"] <= attention["comprehensiveness"]
    assert attention["all_removed"] == random["all_removed"]
    assert "Is the attention true?" in page and "deletion, nats over share removed" in page
    compared = a2("compare", folder, folder)
    assert compared.exit_code == 0 and "CIDEr" in compared.stdout
    again = a2(*words)
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
    votes = ("evaluate.beam_size=20", "evaluate.consensus=true", "evaluate.neighbours=40")
    assert message_of(check, both[0], *votes, error=ConfigError) == (
        "evaluate.neighbours is 40, but a model of transformers, evaluate.model, has no consensus; "
        "leave out neighbours and consensus, or the model"
    )

    def prepare(path):
        with experiment.open(f"evaluate.model={path}") as opened:
            opened.stage("evaluate")

    assert message_of(prepare, tmp_path, error=InputError) == (
        f"evaluate.model names no model of transformers: {str(tmp_path)!r}; name a folder of "
        "save_pretrained, or leave it out to evaluate the experiment's captioner"
    )


@pytest.mark.slow
def test_analyze_compares_attention_with_gradients_and_erases_the_first_references(
    experiment, artifacts, saved, tmp_path, monkeypatch
):
    references = {name: ["w1 w2"] for name in experiment_images(artifacts)}
    where = "a2cap.pipeline.analysis.faithfulness.load_reference_tokens"
    monkeypatch.setattr(where, lambda path: references)
    options = ["-c", experiment.config_file, "--artifacts", artifacts, "--output", tmp_path / "a"]
    words = ["analyze", saved, *options, "--erasure", "2"]
    answer = a2(*words, code=0)
    assert answer.stdout.startswith("qwen: 4 of 4 images\nlayer  tau(attention)")
    assert "\nerasure, 2 images, nats per word [95 % over images]\norder " in answer.stdout
    with (tmp_path / "a" / "layers.csv").open() as file:
        layers = list(csv.DictReader(file))
    assert [(row["layer"], row["words"], row["tau_aligned"]) for row in layers] == [
        ("1", "8", ""),
        ("2", "8", ""),
    ]
    with experiment.open() as started:
        files = started.files.images
    [captions] = (artifacts / "preprocess").glob("*/captions.h5")
    expected = plain_taus(saved, [files[name] for name in CaptionFile(captions).image_ids("val")])
    measured = [float(row["tau_attention"]) for row in layers]
    assert measured == pytest.approx(expected.tolist(), abs=0.01)  # a pair may change by rounding
    assert max(map(abs, measured)) > 0.02
    with (tmp_path / "a" / "erasure.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["order"], row["words"]) for row in rows] == [
        ("qwen", "attention", "4"),
        ("qwen", "gradient", "4"),
        ("qwen", "random", "4"),
    ]
    assert float(rows[0]["all_removed"]) == float(rows[1]["all_removed"])
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        *("erasure.csv", "erasure.png", "erasure_curves.csv", "faithfulness.png", "layers.csv"),
        "runs.csv",
    ]
    for name in references:
        references[name] = ["unheard"]
    answer = a2(*words, "--force")
    assert answer.stderr.endswith(
        "a2: nothing was measured of 'qwen' on 4 images of split 'val'; name another --split, or a "
        "model that has the words of its captions\n"
    )


def plain_taus(saved, paths):
    """Return the mean tau of each layer by transformers alone: one call for each caption."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        saved, attn_implementation="eager"
    )
    processor = transformers.AutoProcessor.from_pretrained(saved)
    ask = [{"type": "image"}, {"type": "text", "text": "Describe the image in one sentence."}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": ask}], add_generation_prompt=True, tokenize=False
    )
    words = processor.tokenizer("w1 w2", add_special_tokens=False)["input_ids"]
    read, taus = {}, []

    def begin_at_embeddings(module, args, kwargs):
        read["states"] = kwargs["inputs_embeds"].detach().requires_grad_()
        return args, {**kwargs, "inputs_embeds": read["states"]}

    model.model.language_model.register_forward_pre_hook(begin_at_embeddings, with_kwargs=True)
    for path in paths:
        with Image.open(path) as image:
            given = dict(processor(images=[[image]], text=[text], return_tensors="pt"))
        added = torch.tensor([words])
        given["input_ids"] = torch.cat((given["input_ids"], added), dim=1)
        for name, value in (("attention_mask", 1), ("mm_token_type_ids", 0)):
            if name in given:
                rows = given[name], torch.full_like(added, value)
                given[name] = torch.cat(rows, dim=1)
        columns = (given["input_ids"][0] == model.config.image_token_id).nonzero()[:, 0]
        output = model(**given, output_attentions=True)
        for step, word in enumerate(words):
            at = step - len(words) - 1
            probability = output.logits[0, at].softmax(-1)[word]
            [gradient] = torch.autograd.grad(probability, read["states"], retain_graph=True)
            importance = gradient[0, columns].norm(dim=1).tolist()
            rows = [layer[0, :, at, columns].mean(0).tolist() for layer in output.attentions]
            taus.append([tau_b(row, importance) for row in rows])
    return np.mean(taus, axis=0)


def experiment_images(artifacts):
    [folder] = (artifacts / "preprocess").glob("*/")
    return read_json(folder / "references.json")
