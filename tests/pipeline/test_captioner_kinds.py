"""Every kind of captioner goes through the same commands; a Transformer's files name no kind."""

import json

import pytest
import torch
import yaml
from PIL import Image
from torchvision.models import resnet18

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.grid import GridExtractor
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.kinds import make_captioner
from a2cap.pipeline.captioning.model_description import ModelDescription
from a2cap.pipeline.captioning.saved_captioner import load_model, save_model
from tests.experiments import a2
from tests.model.kinds import KINDS

OTHER_KINDS = [
    ("up-down", {}),
    *(
        pytest.param(kind, {}, marks=pytest.mark.slow)
        for kind in KINDS
        if kind not in ("transformer", "up-down")
    ),
    pytest.param(
        "show-attend-tell",
        {"attention": "hard", "alignment": AlignmentConfig(renormalise_aligned=True)},
        marks=pytest.mark.slow,
    ),
    pytest.param("gru", {"attention": "none"}, marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fields"), OTHER_KINDS)
def test_a_kind_is_trained_evaluated_and_analysed(
    copy, tmp_path, without_meteor, request, kind, fields
):
    settings = yaml.safe_load(copy.experiment.config_file.read_text())
    cells = KINDS[kind](**fields).grid_cells
    if cells:
        settings["data"]["features"] = str(request.getfixturevalue("cells"))
    model = KINDS[kind](**fields).model_dump(mode="json")
    train = {"epochs": 1, "batch_size": 8, "schedule": "constant", "lr": 0.01}
    scst = {"epochs": 1, "samples": 2, "max_length": 6}
    changed = {**settings, "model": model, "train": train, "scst": scst}
    config_file = tmp_path / "kind.yaml"
    config_file.write_text(yaml.safe_dump(changed))
    options = ("-c", config_file, "--artifacts", copy.artifacts)

    assert "train-xe" in a2("run", *options, code=0).output
    [trained] = copy.artifacts.glob("train-scst/*/model.json")
    assert json.loads(trained.read_text())["model"]["kind"] == kind
    [report] = (
        path for path in copy.artifacts.glob("evaluate/*/metrics.json") if kind in path.read_text()
    )
    scores = json.loads(report.read_text())
    assert scores["provenance"]["model.kind"] == kind
    assert scores["metrics"]["CIDEr"] >= 0

    analysed = a2("analyze", *options, "--output", tmp_path / "analysis", "--images", "2")
    if not KINDS[kind](**fields).has_attention:
        assert analysed.output == (
            "a2: captioner has no attention over regions: nothing to measure; name one that "
            "attends\n"
        )
        return
    assert analysed.exit_code == 0, analysed.output
    assert (tmp_path / "analysis" / "layers.csv").is_file()
    if cells:  # its cells are not of an extractor; see below
        return
    image, figure = copy.experiment.scenes / "images" / f"{1:012d}.jpg", tmp_path / "figure.png"
    boxes = ("--boxes", settings["data"]["instances"])
    caption = a2("caption", image, "--model", trained.parent, *boxes, "--figure", figure, code=0)
    assert caption.stdout.startswith(f"{image}: ")
    assert figure.is_file()


@pytest.mark.slow
def test_a_captioner_of_cells_captions_a_new_image(tmp_path):
    words = ("<pad>", "<bos>", "<eos>", "<unk>", "a", "red", "kite")
    vocabulary, model = Vocabulary(words, "karpathy"), KINDS["spatial"](cells=49)
    captioner = make_captioner(model, feature_width=64, vocabulary_size=len(words))
    described = ModelDescription(
        model=model,
        region_width=64,
        vocabulary_size=len(words),
        vocabulary_digest=vocabulary.digest,
        max_regions=None,
    )
    tensors = captioner.state_dict()
    save_model(tmp_path, tensors=tensors, description=described, vocabulary=vocabulary)
    grid = ExtractConfig(
        boxes="grid", grid_backbone="resnet18", grid_layer="layer1", grid_size=7, min_side=64
    )
    extractor = GridExtractor(resnet18(weights=None).state_dict(), config=grid)
    extractor.save(tmp_path / "weights.safetensors")
    extractor.record(tmp_path / "weights.safetensors").write(tmp_path / "extractor.json")
    image, figure = tmp_path / "kite.png", tmp_path / "figure.png"
    Image.new("RGB", (90, 60), "red").save(image)
    answer = a2("caption", image, "--model", tmp_path, "--figure", figure, "--json", code=0)
    assert len(json.loads(answer.stdout)["boxes"]) == 49
    assert figure.is_file()


def test_the_files_of_a_transformer_name_no_kind_and_are_read_as_one(experiment):
    trained = experiment.directory("train-xe")
    assert "kind" not in json.loads((trained / "model.json").read_text())["model"]
    assert '"kind"' not in (trained / "manifest.json").read_text()
    loaded = load_model(trained, device=torch.device("cpu"))
    assert loaded.description.model.kind == "transformer"
