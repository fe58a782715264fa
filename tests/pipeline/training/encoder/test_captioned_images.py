"""Images that an encoder is trained on: parts, colours, captions, and files that are damaged."""

import errno
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from threading import Barrier

import cv2
import numpy as np
import pytest
from PIL import Image

from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.vocabulary import PAD
from a2cap.extract.trainable_encoder import random_part, scaled, shrunk
from a2cap.pipeline.extraction.images import ImageFiles
from a2cap.pipeline.training.encoder import captioned_images
from a2cap.pipeline.training.encoder.captioned_images import (
    CaptionedImages,
    SquareImages,
    collate,
    unreadable,
)
from a2cap.pipeline.training.encoder.encoder_config import EncoderConfig
from tests.experiments import images_of
from tests.file_sizes import limited_to


@pytest.fixture
def images(experiment):
    files = (experiment.scenes / "images").iterdir()
    return ImageFiles({path.stem: path for path in files})


@pytest.fixture
def squares(images, tmp_path):
    """Return the images, of 96 pixels, which are read as they are."""
    return SquareImages(images, 48, 0.5, tmp_path / "small")


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


def test_no_part_of_a_smaller_image_is_scaled_up():
    for side, least, large in product((32, 45), (0.3, 0.5, 1.0), ((400, 533), (901, 299))):
        small = shrunk(np.zeros((*large, 3), np.uint8), side, least)
        assert min(small.shape[:2]) < 150
        for draws in product((0.0, 0.999), (0.0, 0.5, 0.999), (0.5,), (0.5,)):
            assert min(random_part(small, least, draws).shape[:2]) >= side
    pixels = np.zeros((199, 400, 3), np.uint8)  # parts need 100
    assert shrunk(pixels, 65, 0.5) is pixels


def test_parts_of_a_smaller_image_are_near_those_that_extraction_would_scale():
    photograph = cv2.imread("pipeline/chelsea.jpg")
    small, generator = shrunk(photograph, 80, 0.9), np.random.default_rng(0)
    assert small.shape == (100, 150, 3)
    differences = []
    for _ in range(20):
        draws = generator.random(4).tolist()
        part = random_part(photograph, 0.9, draws)
        smooth = np.asarray(Image.fromarray(part).resize((80, 80), Image.Resampling.BILINEAR))
        ways = scaled(random_part(small, 0.9, draws), 80), scaled(part, 80)
        differences.append([np.abs(way - smooth.astype(float)).mean() for way in ways])
    ours, unsmoothed = np.mean(differences, axis=0)
    assert ours < 4
    assert ours < unsmoothed


def test_a_large_image_is_decoded_once_and_another_each_time(
    images, captions, experiment, tmp_path, monkeypatch
):
    ids, decoded = images_of(experiment.scenes, "train")[:3], []
    decode = captioned_images.decode_image

    def counted(encoded, name):
        decoded.append(name)
        return decode(encoded, name)

    def items(side):
        folder = tmp_path / str(side)
        data = SquareImages(images, side, 0.9, folder)
        assert unreadable(data, ids, workers=2, shown=False)[0] == []
        config = EncoderConfig(crop=0.9)
        made = [CaptionedImages(data, captions, ids, config)[epoch, 0] for epoch in range(3)]
        return made, data.read(ids[0]), folder

    monkeypatch.setattr(captioned_images, "decode_image", counted)
    made, pixels, folder = items(32)
    assert len(decoded) == 3
    assert pixels.shape == (48, 48, 3)
    assert len(list(folder.iterdir())) == 3
    assert (made[0].pixels != made[1].pixels).any()
    made, pixels, folder = items(48)
    assert len(decoded) == 3 + 3 + 4
    np.testing.assert_array_equal(pixels, cv2.imread(str(images.paths[ids[0]])))
    assert not folder.exists()


def test_an_image_without_space_for_its_copy_is_the_same(images, tmp_path, caplog):
    ids = sorted(images.paths)[:3]
    kept, full = (SquareImages(images, 32, 0.9, tmp_path / name) for name in ("kept", "full"))
    with limited_to(3000):
        unsaved = [full.read(name) for name in ids]
    assert caplog.messages == [
        "cannot write smaller copies of images: File too large; decoding the others in each "
        "epoch, which takes longer; free disk space, and run the same command again to avoid it"
    ]
    assert not list((tmp_path / "full").iterdir())
    for name, pixels in zip(ids, unsaved, strict=True):
        kept.read(name)
        np.testing.assert_array_equal(kept.read(name), pixels)
        np.testing.assert_array_equal(full.read(name), pixels)
    assert not list((tmp_path / "full").iterdir())


def test_threads_that_fail_to_write_at_once_log_one_warning(images, tmp_path, caplog, monkeypatch):
    all_write = Barrier(4)

    def fail(path, content):
        all_write.wait(timeout=60)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(captioned_images, "write_durably", fail)
    squares = SquareImages(images, 32, 0.9, tmp_path / "small")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(squares.read, sorted(images.paths)[:4]))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("cannot write smaller copies of images: No space left")


def test_an_item_depends_on_epoch_and_index_alone(squares, captions, experiment):
    ids = images_of(experiment.scenes, "train")

    def dataset(**changes):
        config = EncoderConfig(**changes)
        return CaptionedImages(squares, captions, ids, config)

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


def test_mirrored_images_are_mirrored_and_about_half(squares, captions, experiment):
    ids = images_of(experiment.scenes, "train")
    plain, mirrored = (
        CaptionedImages(squares, captions, ids, EncoderConfig(mirror=on, crop=1, colour=0))
        for on in (False, True)
    )
    flips = 0
    for index in range(len(ids)):
        kept, turned = plain[0, index].pixels, mirrored[0, index].pixels
        is_mirrored = (kept != turned).any()
        np.testing.assert_array_equal(turned, kept[:, ::-1] if is_mirrored else kept)
        flips += is_mirrored
    assert 0.2 < flips / len(ids) < 0.8


def test_validation_reads_whole_images_with_all_their_captions(
    images, squares, captions, experiment
):
    ids = images_of(experiment.scenes, "val")
    item = CaptionedImages(squares, captions, ids)[0, 0]
    whole = cv2.imread(str(images.paths[ids[0]]))
    np.testing.assert_array_equal(item.pixels, cv2.resize(whole, (48, 48)))
    part = collate([item, item])
    assert part.pixels.shape == (2, 48, 48, 3)
    assert part.tokens.shape == (2, *item.tokens.shape)


def test_captions_are_padded_to_the_most_and_the_longest(squares, captions, experiment):
    ids = images_of(experiment.scenes, "val")
    item = CaptionedImages(squares, captions, ids)[0, 0]
    fewer = type(item)(item.image_id, item.pixels, item.tokens[:1, :3])
    part = collate([fewer, item])
    assert part.tokens[0, 0, :3].tolist() == item.tokens[0, :3].tolist()
    assert (part.tokens[0, 1:] == PAD).all()
    assert (part.tokens[0, :, 3:] == PAD).all()


def test_damaged_and_missing_images_are_named(images, squares, tmp_path):
    ids = sorted(images.paths)[:4]
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(images.paths[ids[0]].read_bytes()[:900])
    paths = {**images.paths, ids[0]: damaged, ids[1]: None}
    damaged_squares = replace(squares, images=ImageFiles(paths))
    skipped, smallest = unreadable(damaged_squares, ids, workers=2, shown=False)
    assert smallest == 96
    assert [item.image_id for item in skipped] == ids[:2]
    assert "damaged.jpg" in skipped[0].reason
    assert skipped[1].reason == "image file not found"
