"""Decoding of JPEG: damage of which libjpeg only warns is an error that names the file."""

import io
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from a2cap.data.errors import InputError
from a2cap.extract.image import decode_image
from tests.data.messages import message_of


@pytest.fixture(scope="module")
def photo():
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    file = io.BytesIO()
    coarse.resize((320, 240), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def with_bytes(jpeg, position, content):
    return jpeg[:position] + content + jpeg[position + len(content) :]


def test_damage_that_libjpeg_warns_of_is_an_error_by_name(photo, capfd):
    damaged = with_bytes(photo, len(photo) // 2, b"\xff\xd3")  # a marker among the pixels
    assert re.fullmatch(
        "image 'dog.jpg' cannot be decoded: corrupt JPEG data: .*; get the file again",
        message_of(decode_image, damaged, "dog.jpg"),
    )
    assert capfd.readouterr().err == ""


def test_flipped_bits_of_which_libjpeg_warns_are_found(photo):
    start = photo.index(b"\xff\xda") + 20
    positions = np.random.default_rng(1).integers(start, len(photo) - 10, 100)
    whole, refused, unseen = decode_image(photo, "a"), 0, 0
    for position in positions:
        flipped = with_bytes(photo, position, bytes([photo[position] ^ 16]))
        try:
            unseen += not np.array_equal(decode_image(flipped, "a"), whole)
        except InputError:
            refused += 1
    # JPEG has no checksum: no decoder sees a flipped bit that leaves a valid stream
    assert refused > 5 and refused + unseen > 90


def test_only_the_damaged_one_of_images_that_threads_decode_is_an_error(photo):
    damaged = with_bytes(photo, len(photo) // 2, b"\xff\xd3")

    def problem(jpeg):
        try:
            decode_image(jpeg, "a")
        except InputError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(4) as threads:
        problems = list(threads.map(problem, [photo, damaged, photo, photo] * 8))
    assert [text is not None for text in problems] == [False, True, False, False] * 8


def test_a_damaged_colour_profile_is_no_reason_to_reject_the_pixels(photo):
    wrong = b"ICC_PROFILE\0\x09\x02" + bytes(20)  # part 9 of 2
    segment = b"\xff\xe2" + (len(wrong) + 2).to_bytes(2, "big") + wrong
    profiled = photo[:2] + segment + photo[2:]
    assert np.array_equal(decode_image(profiled, "dog.jpg"), decode_image(photo, "dog.jpg"))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # of Pillow, which reads the density
def test_damaged_exif_leaves_the_image_as_it_is(photo):
    exif = b"Exif\0\0II*\0\xff\xff\xff\x7f" + bytes(8)
    segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
    named = photo[:2] + segment + photo[2:]
    assert np.array_equal(decode_image(named, "dog.jpg"), decode_image(photo, "dog.jpg"))
