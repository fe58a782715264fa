"""Command `a2 karpathy`."""

import json

from a2cap.data.annotations.read import read_annotations
from tests.data.messages import written
from tests.experiments import a2


def test_official_captions_and_two_lists_become_a_file_that_a2_reads(tmp_path):
    images = [{"id": n, "file_name": f"COCO_val2014_{n:012d}.jpg"} for n in (3, 1, 2)]
    texts = [{"id": n, "image_id": n, "caption": "A dog."} for n in (1, 2, 3)]
    captions = written(tmp_path, {"images": images, "annotations": texts})
    lists = [
        *("--val", written(tmp_path, "COCO_val2014_000000000001.jpg 1\n", "val.txt")),
        *("--test", written(tmp_path, "2\n", "test.txt")),
    ]
    target = tmp_path / "my dataset.json"
    answer = a2("karpathy", captions, *lists, "--output", target, code=0)
    assert answer.stderr == ""
    assert answer.stdout == f"{target}: 3 images (restval 1, test 1, val 1), 3 captions\n"
    assert [image.split for image in read_annotations(target).images] == ["train", "val", "test"]
    assert json.loads(target.read_text())["images"][0]["split"] == "restval"
    answer = a2("karpathy", tmp_path / "none.json", *lists, "--output", target, code=1)
    assert answer.stderr == f"a2: no file {str(tmp_path / 'none.json')!r}; check the path\n"
