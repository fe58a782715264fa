"""Decoding of JPEG: damage of which libjpeg only warns is an error that names the file."""

import errno
import io
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from a2cap.extract.image import decode_image
from a2cap.extract.jpeg import decode_jpeg
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
    whole, found, unseen = decode_jpeg(photo), 0, 0
    for position in positions:
        flipped = with_bytes(photo, position, bytes([photo[position] ^ 16]))
        try:
            unseen += not np.array_equal(decode_jpeg(flipped), whole)
        except ValueError:
            found += 1
    # JPEG has no checksum: no decoder sees a flipped bit that leaves a valid stream
    assert found > 5 and found + unseen > 90


def test_what_others_write_to_standard_error_is_not_lost(photo, capfd, monkeypatch):
    imdecode = sys.modules["a2cap.extract.jpeg"].cv2.imdecode

    def decode_and_write(*arguments):
        os.write(2, b"a line of another thread\n")
        return imdecode(*arguments)

    monkeypatch.setattr("a2cap.extract.jpeg.cv2.imdecode", decode_and_write)
    decode_jpeg(photo)
    assert capfd.readouterr().err == "a line of another thread\n"


def test_only_the_damaged_one_of_images_that_threads_decode_is_an_error(photo):
    damaged = with_bytes(photo, len(photo) // 2, b"\xff\xd3")

    def problem(jpeg):
        try:
            decode_jpeg(jpeg)
        except ValueError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(problem, [photo, damaged, photo, photo] * 8))
    assert [text is not None for text in found] == [False, True, False, False] * 8


def test_images_are_decoded_without_standard_error(photo, monkeypatch):
    def closed(descriptor):
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr("a2cap.extract.jpeg.os.dup", closed)
    assert decode_jpeg(photo).shape == (240, 320, 3)


def test_no_descriptor_is_left_open_without_a_temporary_file(photo, monkeypatch):
    copy_of, copies = os.dup, []

    def copied(descriptor):
        copies.append(copy_of(descriptor))
        return copies[-1]

    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("a2cap.extract.jpeg.TemporaryFile", full)
    monkeypatch.setattr("a2cap.extract.jpeg.os.dup", copied)
    with pytest.raises(OSError, match="No space left on device"):
        decode_jpeg(photo)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(copies[0])
