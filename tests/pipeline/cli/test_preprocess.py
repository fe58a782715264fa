"""Command `a2 preprocess` on captions in a folder."""

import pytest

from a2cap.data.captions.caption_file import CaptionFile
from tests.data.messages import touch
from tests.experiments import a2, settings


@pytest.mark.slow
def test_a_folder_of_images_with_text_files_needs_only_a_split(tmp_path):
    folder = tmp_path / "my images"
    for number in range(10):
        touch(folder, f"{number}.jpg")
        (folder / f"{number}.txt").write_text("A dog runs.\nA dog.\n")
    options = [
        *("--artifacts", tmp_path / "artifacts"),
        *settings(
            f"data.annotations={folder}",
            "data.split=random(0.8/0.1/0.1, 1)",
            "preprocess.min_count=1",
        ),
    ]
    answer = a2("preprocess", *options)
    assert (answer.exit_code, answer.exception) == (0, None), answer.output
    [captions] = (tmp_path / "artifacts").glob("preprocess/*/captions.h5")
    found = CaptionFile(captions)
    assert [len(found.image_ids(split)) for split in ("train", "val", "test")] == [8, 1, 1]
    assert "nothing to do" in a2("preprocess", *options).stdout
    (folder / "3.txt").write_text("A cat.")
    assert "nothing to do" not in a2("preprocess", *options).stdout
