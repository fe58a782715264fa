"""Images that an encoder is trained on: parts, colours, captions, and files that are damaged."""

import cv2
import numpy as np
import pytest

from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.vocabulary import PAD
from a2cap.extract.trainable_encoder import random_part
from a2cap.pipeline.extraction.images import ImageFiles
from a2cap.pipeline.training.encoder.captioned_images import CaptionedImages, collate, unreadable
from a2cap.pipeline.training.encoder.encoder_config import EncoderConfig
from tests.experiments import images_of


@pytest.fixture
def images(experiment):
    files = (experiment.scenes / "images").iterdir()
    return ImageFiles({path.stem: path for path in files})


@pytest.fixture
def captions(experiment):
    return CaptionFile(experiment.directory("preprocess") / "captions.h5")


def test_parts_have_the_asked_area_and_lie_inside():
    pixels = np.arange(80 * 120 * 3, dtype=np.uint32).reshape(80, 120, 3)
    generator, corners = np.random.default_rng(0), set()
    for _ in range(200):
        part = random_part(pixels, 0.5, generator.random(4).tolist())
        # rounded down, and cut where another shape does not fit
        assert 0.42 < part.shape[0] * part.shape[1] / (80 * 120) <= 1
        top, left = divmod(int(part[0, 0, 0]) // 3, 120)
        rows, columns = part.shape[:2]
        np.testing.assert_array_equal(part, pixels[top : top + rows, left : left + columns])
        corners.add((top, left))
    assert len(corners) > 100
    assert random_part(pixels, 1.0, [0.5] * 4) is pixels


def test_an_item_depends_on_epoch_and_index_alone(images, captions, experiment):
    ids = images_of(experiment.scenes, "train")

    def dataset(**changes):
        config = EncoderConfig(**changes)
        return CaptionedImages(images, captions, ids, side=48, config=config)

    first, again = dataset()[1, 3], dataset()[1, 3]
    assert first.pixels.shape == (48, 48, 3)
    assert first.image_id == ids[3]
    np.testing.assert_array_equal(first.pixels, again.pixels)
    assert (dataset()[2, 3].pixels != first.pixels).any()
    assert (dataset(seed=1)[1, 3].pixels != first.pixels).any()
    # every caption tells which words there are; of a caption loss, some are drawn
    assert len(first.tokens) == len(captions.captions(ids[3]))
    drawn = dataset(objective="captions")[1, 3]
    assert len(drawn.tokens) == 2
    rows = captions.captions(ids[3]).tolist()
    assert all(row in rows for row in drawn.tokens.tolist())


def test_mirrored_images_are_mirrored_and_about_half(images, captions, experiment):
    ids = images_of(experiment.scenes, "train")
    plain, mirrored = (
        CaptionedImages(
            images, captions, ids, side=48, config=EncoderConfig(mirror=on, crop=1, colour=0)
        )
        for on in (False, True)
    )
    flips = 0
    for index in range(len(ids)):
        kept, turned = plain[0, index].pixels, mirrored[0, index].pixels
        is_mirrored = (kept != turned).any()
        np.testing.assert_array_equal(turned, kept[:, ::-1] if is_mirrored else kept)
        flips += is_mirrored
    assert 0.2 < flips / len(ids) < 0.8


def test_validation_reads_whole_images_with_all_their_captions(images, captions, experiment):
    ids = images_of(experiment.scenes, "val")
    item = CaptionedImages(images, captions, ids, side=48)[0, 0]
    whole = cv2.imread(str(images.paths[ids[0]]))
    np.testing.assert_array_equal(item.pixels, cv2.resize(whole, (48, 48)))
    part = collate([item, item])
    assert part.pixels.shape == (2, 48, 48, 3)
    assert part.tokens.shape == (2, *item.tokens.shape)


def test_captions_are_padded_to_the_most_and_the_longest(images, captions, experiment):
    ids = images_of(experiment.scenes, "val")
    item = CaptionedImages(images, captions, ids, side=48)[0, 0]
    fewer = type(item)(item.image_id, item.pixels, item.tokens[:1, :3])
    part = collate([fewer, item])
    assert part.tokens[0, 0, :3].tolist() == item.tokens[0, :3].tolist()
    assert (part.tokens[0, 1:] == PAD).all()
    assert (part.tokens[0, :, 3:] == PAD).all()


def test_damaged_and_missing_images_are_named(images, tmp_path):
    ids = sorted(images.paths)[:4]
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(images.paths[ids[0]].read_bytes()[:900])
    paths = {**images.paths, ids[0]: damaged, ids[1]: None}
    skipped, smallest = unreadable(ImageFiles(paths), ids, workers=2, shown=False)
    assert smallest == 96
    assert [item.image_id for item in skipped] == ids[:2]
    assert "damaged.jpg" in skipped[0].reason
    assert skipped[1].reason == "image file not found"
