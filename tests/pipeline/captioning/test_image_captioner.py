"""Captioners that a2 trained, loaded with their extractor."""

from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from a2cap.extract.image import read_image
from a2cap.pipeline.captioning.captioned_image import OpenedImage
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.captioning.image_captioner import ImageCaptioner
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.weights.captioners import BUNDLED
from tests.data.messages import message_of

CPU = RuntimeConfig(device="cpu")


@pytest.mark.parametrize(
    ("settings", "beams"), [({}, 20), pytest.param({"beam_size": 4}, 4, marks=pytest.mark.slow)]
)
def test_the_bundled_captioner_of_photographs_has_settings_of_its_own(settings, beams):
    captioner = ImageCaptioner(
        [BUNDLED["photos"].folder], decoding=CaptioningConfig(**settings), runtime=CPU
    )
    [captioned] = captioner.caption([captioner.extract(np.zeros((64, 64, 3), np.uint8))])
    assert len(captioned.beams) == beams
    is_sorted = sorted(captioned.beams, key=lambda beam: -beam.score) == captioned.beams
    assert is_sorted or not settings  # by consensus, not by probability


def test_attention_to_a_given_caption_is_that_to_the_same_generated_one():
    captioner = ImageCaptioner(
        [BUNDLED["scenes"].folder], decoding=CaptioningConfig(beam_size=1), runtime=CPU
    )
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    image = OpenedImage(pixels)
    [captioned] = captioner.caption_each([lambda: image], attention=True)
    attended = captioner.attend(image, captioned.beams[0].caption)
    np.testing.assert_allclose(attended.attention.original, captioned.attention.original, atol=1e-6)


@pytest.mark.slow
def test_more_beams_than_its_own_raise_those_of_the_bundled_captioner():
    how = {"decoding": CaptioningConfig(), "runtime": CPU}
    for least, beams in ((3, 20), (21, 21)):
        captioner = ImageCaptioner([BUNDLED["photos"].folder], **how, least_beams=least)
        extracted = captioner.extract(np.zeros((64, 64, 3), np.uint8))
        assert len(captioner.caption([extracted])[0].beams) == beams
    assert message_of(captioner._require_words, "a zebrafish") == (
        "the captioner has no word 'zebrafish' of 'a zebrafish'; name one whose vocabulary has "
        "the words of the caption"
    )
    assert message_of(captioner.extract, None, np.zeros((1, 4), np.float32)) == (
        "the captioner was not trained on given boxes; leave boxes out"
    )


@pytest.mark.slow
def test_threads_of_a_program_may_share_a_captioner_of_mixed_precision():
    settings = CaptioningConfig(precision="bf16", beam_size=2)
    captioner = ImageCaptioner([BUNDLED["photos"].folder], decoding=settings, runtime=CPU)
    photo = read_image(Path(str(files("a2cap.pipeline") / "chelsea.jpg")))
    views = [captioner.extract(photo[:, 40 * number :].copy()) for number in range(4)]

    def captions(view):
        return [c.beams[0].caption for c in captioner.with_attention(captioner.caption([view]))]

    expected = list(map(captions, views))
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(captions, views * 2)) == expected * 2
