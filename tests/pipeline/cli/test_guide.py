"""Commands of the README and the guide, run as they are written, in a folder like the reader's.

The configurations there are small and have results already. Other tests run the commands of
`ELSEWHERE`, which need a download, a long training or people.
"""

import csv
import json
import pickle
import shutil

import pytest
import yaml
from safetensors.torch import load_file

from a2cap.pipeline.weights.detectors import BUNDLED
from tests.data.sources.samples import tar_bytes
from tests.experiments import a2, detecting
from tests.test_docs_pages import README, commands
from tests.test_structure import ROOT

DOCS = ROOT / "docs"
PAGES = {README, DOCS / "index.md", DOCS / "reproduce.md", *(DOCS / "guide").glob("*.md")}
PAGES -= {DOCS / "guide" / "metrics.md"}
"""The commands of metrics.md run in tests/pipeline/metrics/test_metrics_page.py."""

EXTRACT = "extract --images my-images --output my-features --set"
ELSEWHERE = (
    "demo",
    "serve",
    "weights fetch",
    "caption dog.jpg --model latest",
    "caption photo.jpg --model latest",
    "caption dog.jpg holidays --model latest",
    f"{EXTRACT} extract.boxes=grid",
    "scenes scenes",
    "detector train",
    "sweep ",
    "train -c configs/a2-gate.yaml --phase",
    "compare a2-gate latest",
    "human ",
    "score ours.csv",
    "extract -c configs/a2-gate.yaml --shard auto",
    "run -c captioner-photos",
    "run -c own-encoder",
    # in tests/pipeline/captioning/adapted and tests/pipeline/evaluation
    "caption holidays --model my-vlm",
    "caption dog.jpg --model my-vlm",
    "evaluate -c configs/a2-gate.yaml --model my-vlm",
)
"""Starts of commands that are not run here."""

FEWER = {"5000": "2", "300": "2"}
"""Count of scenes -> count that is drawn here."""


def write_lists(folder, document):
    """Write the captions of the scenes as COCO's two files, a table, results and lists of ids."""
    images, texts = document["images"], document["annotations"]
    halves = {"train": images[:20], "val": images[20:]}
    for name, half in halves.items():
        ids = {image["id"] for image in half}
        own = [text for text in texts if text["image_id"] in ids]
        file = folder / f"captions_{name}2014.json"
        file.write_text(json.dumps({"images": half, "annotations": own}))
    shutil.copy(folder / "captions_val2014.json", folder / "references.json")
    (folder / "image_info_test2014.json").write_text(json.dumps({"images": halves["train"]}))
    results = [{"image_id": image["id"], "caption": "a red kite"} for image in halves["val"]]
    (folder / "theirs.json").write_text(json.dumps(results))
    for number, split in enumerate(("val", "test")):
        lines = [image["file_name"] for image in halves["val"][number::2]]
        (folder / f"karpathy_{split}_images.txt").write_text("\n".join(lines))
    lines = [
        {"image": image["file_name"], "captions": ["a red kite"], "split": split}
        for split, half in halves.items()
        for image in half
    ]
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    chats = [
        {
            "image": line["image"],
            "split": line["split"],
            "conversations": [{"from": "gpt", "value": "a red kite"}],
        }
        for line in lines
    ]
    (folder / "chat.json").write_text(json.dumps(chats))
    with (folder / "coco-cn.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "caption", "split"])
        splits = {image["id"]: ("train", "val", "test")[image["id"] % 3] for image in images}
        for text in texts:
            number = text["image_id"]
            table.writerow([f"{number:012d}.jpg", text["caption"], splits[number]])


def write_tars(folder, scenes, document):
    """Write eight scenes and their captions as two tars."""
    folder.mkdir()
    for number in range(2):
        members = {}
        for image in document["images"][number:8:2]:
            name, texts = image["file_name"], document["annotations"]
            captions = [text["caption"] for text in texts if text["image_id"] == image["id"]]
            members[name] = (scenes / "images" / name).read_bytes()
            members[name.replace(".jpg", ".txt")] = "\n".join(captions).encode()
        (folder / f"{number:03}.tar").write_bytes(tar_bytes(members))


@pytest.fixture
def reader(experiment, copy, tmp_path, monkeypatch):
    """Work in a folder that has the files which the pages name."""
    folder = tmp_path / "reader"
    (folder / "configs").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("A2_CACHE", str(folder / "cache"))
    sections = yaml.safe_load(experiment.config_file.read_text())
    for side in ("min_side", "max_side"):  # which each detector states
        del sections["extract"][side]
    settings = yaml.safe_dump(sections)
    store = experiment.directory("extract") / "features.lmdb"
    for name in ("a2-gate", "configs/a2-gate.yaml", "configs/smoke.yaml"):
        (folder / name).write_text(settings)
    data = {"features": str(store), "annotations": "coco/dataset_coco.json"}
    imported = folder / "configs" / "a2-from-features.yaml"
    imported.write_text(yaml.safe_dump({**sections, "data": data}))

    scenes, image = experiment.scenes, experiment.scenes / "images" / "000000000001.jpg"
    copy.artifacts.rename("artifacts")
    trained, scored = (next(folder.glob(f"artifacts/{n}/*")) for n in ("train-xe", "evaluate"))
    links = {
        **dict.fromkeys(("coco", "scenes"), scenes),
        **dict.fromkeys(("DIR", "photos", "train2014"), scenes / "images"),
        "FILE": scenes / "dataset_coco.json",
        **dict.fromkeys(
            ("image.jpg", "dog.jpg", "photo.jpg", "holidays/a.jpg", "my-images/b.jpg"), image
        ),
        **dict.fromkeys(("val-store", "test-store"), store),
        "model_final.pth": BUNDLED["scenes"].path,
        "artifacts/train-detector/KEY/detector.safetensors": BUNDLED["scenes"].path,
        "configs/detector-scenes.yaml": ROOT / "configs" / "detector-scenes.yaml",
        **{f"artifacts/evaluate/{name}": scored for name in ("KEY_A", "KEY_B", "BASELINE", "A2")},
    }
    for name, target in links.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target)
    # the experiment's boxes are given, those of the reader are detected
    shutil.copytree(trained, trained.with_name("KEY"), ignore=shutil.ignore_patterns("manifest*"))
    detecting(trained.with_name("KEY"))
    tensors = load_file(experiment.weights)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    detector = folder / "faster_rcnn_from_caffe_attr.pkl"
    detector.write_bytes(pickle.dumps({"model": arrays}, protocol=2))
    a2("convert", store, "train2014_obj36.tsv", "--to", "caffe", code=0)
    boxes = json.loads((scenes / "instances.json").read_text())
    boxes["images"] = [{**row, "file_name": "b.jpg"} for row in boxes["images"] if row["id"] == 1]
    boxes["annotations"] = [row for row in boxes["annotations"] if row["image_id"] == 1]
    shutil.copy(scenes / "instances.json", folder / "instances_val2014.json")
    (folder / "boxes.json").write_text(json.dumps(boxes))
    document = json.loads((scenes / "captions.json").read_text())
    write_lists(folder, document)
    write_tars(folder / "shards", scenes, document)
    return folder


@pytest.mark.slow
def test_the_commands_of_the_pages_run(reader, without_meteor):
    photos = "\n".join(str(path) for path in sorted(reader.glob("photos/*"))[:2])
    written = [words for page in sorted(PAGES) for words, complete in commands(page) if complete]
    written = [[FEWER.get(word, word) for word in words] for words in written]
    run = [words for words in written if not " ".join(words).startswith(ELSEWHERE)]
    assert len(run) > 25
    for words in run:
        shutil.rmtree("scores", ignore_errors=True)  # of another page
        answer = a2(*words, input=photos)
        # 3: without SPICE
        assert answer.exit_code in (0, 3), f"a2 {' '.join(words)}: {answer.output}"
