"""Supervised attention: its targets, and a training with them."""

import numpy as np
import torch

from a2cap.data.annotations.instances import Instances
from a2cap.data.batches.collate import Batch
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import write_json
from a2cap.pipeline.training.captioner.training_data import NamedRegions
from tests.data.messages import message_of
from tests.experiments import settings
from tests.pipeline.training.runs import metrics

VOCABULARY = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", "a", "hot", "dog", "cats"), "karpathy")


def test_a_named_category_has_its_regions_and_other_words_have_none():
    boxes = np.array([[0, 0, 10, 10], [20, 0, 40, 20]], np.float32)
    instances = {"1": Instances(boxes, ("cat", "hot dog"), size=(80, 40))}
    # the second region is the cat's too; the last is padding
    regions = torch.tensor([[20, 0, 40, 19], [0, 0, 9, 10], [0, 0, 10, 9], [0, 0, 0, 0]])
    relative = torch.cat((regions / torch.tensor([80, 40, 80, 40]), torch.zeros(4, 1)), dim=1)
    exists = torch.tensor([[True, True, True, False]])
    tokens = torch.tensor([[[4, 5, 6, 2, 0], [4, 7, 4, 6, 2]]])
    batch = Batch(("1",), torch.zeros(1, 4, 3), relative[None], exists, tokens)
    targets = NamedRegions(instances, VOCABULARY).targets(batch)
    expected = torch.zeros(2, 5, 4)
    expected[0, 1:3, 0] = 1  # "hot dog"; the "dog" of the second caption is none
    expected[1, 1, 1:3] = 0.5
    assert torch.equal(targets, expected.reshape(1, 10, 4))


def test_boxes_without_the_size_of_their_image_are_rejected(tmp_path):
    annotations = [{"id": 1, "image_id": 7, "category_id": 1, "bbox": [0, 0, 2, 2]}]
    content = {
        "images": [{"id": 7, "file_name": "7.jpg"}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    write_json(tmp_path / "instances.json", {**content, "annotations": annotations})
    path = tmp_path / "instances.json"
    assert message_of(NamedRegions.read, path, VOCABULARY, error=InputError) == (
        f"image '000000000007' has boxes, but no width and height in {str(path)!r}; add them for "
        "train.supervision, or set it to 0"
    )


def test_supervised_attention_is_trained_and_reported(copy):
    few = settings("train.epochs=2", "train.supervision=1")
    unset = copy.a2("train", *few, *settings("data.instances="))
    assert unset.output.splitlines()[-1] == (
        "a2: data.instances is not set; name the file with --set data.instances=FILE"
    )
    copy.a2("train", *few, code=0)
    [lines] = [
        lines
        for path in copy.artifacts.glob("train-xe/*")
        if "supervision" in (lines := metrics(path))[0]
    ]
    assert lines[1]["supervision"] < lines[0]["supervision"]


def test_a_prophet_serves_one_training_alone(copy):
    def trained(start, prophet):
        chosen = settings("train.epochs=1", f"train.start={start}", f"model.prophet={prophet}")
        before = {*copy.artifacts.glob("train-xe/*")}
        copy.a2("train", *chosen, code=0)
        [made] = {*copy.artifacts.glob("train-xe/*")} - before
        return made

    taught = trained(copy.directory("train-xe"), 0.5)
    assert "prophet_distance" in metrics(taught)[0]
    assert "prophet_distance" not in metrics(trained(taught, 0))[0]
