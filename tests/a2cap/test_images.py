"""Images as paths, PIL images and arrays give the same pixels; anything else is refused."""

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

import a2cap
from a2cap.data.errors import ConfigError
from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.extractor import load_extractor
from a2cap.extract.image import read_image
from a2cap.images import as_boxes, as_pixels
from a2cap.pipeline.weights.detectors import BUNDLED
from tests.data.messages import message_of

STATED = {"min_side": 224, "max_side": 224, "roi_size": 7, "proposals": 36}
"""Settings that the bundled detector states, so that nobody has to."""


@pytest.mark.parametrize("name", ["rgba", "scene"])
def test_a_path_and_a_pil_image_and_an_array_have_the_same_pixels(name, request, tmp_path):
    path = tmp_path / "same.png"  # every decoder reads the same from a PNG
    Image.open(request.getfixturevalue(name)).save(path)
    pixels = read_image(path)
    with Image.open(path) as image:
        array = np.asarray(image)
        assert (as_pixels(image) == pixels).all()
    assert (as_pixels(str(path)) == pixels).all()
    assert (as_pixels(array) == pixels).all()
    swapped = array[..., [2, 1, 0, 3][: array.shape[2]]]
    assert (as_pixels(swapped, channels="bgr") == pixels).all()
    assert not (as_pixels(swapped) == pixels).all()


def test_a_tensor_has_its_colours_first_and_floats_up_to_1_and_grey_three_equal_channels():
    array = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    expected = as_pixels(array)
    for same in (tensor, tensor / 255, (tensor / 255).half()):
        assert (as_pixels(same) == expected).all()
    for grey in (array[:, :, 0], tensor[0], tensor[:1]):
        assert (as_pixels(grey) == array[:, :, :1]).all()


def test_an_opened_image_that_is_cut_off_or_has_other_samples_is_refused(scene):
    content = scene.read_bytes()
    for image in (Image.open(BytesIO(content[: len(content) // 2])), Image.new("F", (2, 2))):
        message = message_of(as_pixels, image)
        assert message.startswith("image cannot be decoded: ")
        assert message.endswith("; open it again")


AS_BEFORE = (
    "a tensor of float32 with values outside [0, 1]; give the image as it was before normalisation"
)
FORM = "give uint8 in [0, 255] of shape (H, W), (H, W, 3) or (H, W, 4)"


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (torch.full((3, 4, 4), 255.0), AS_BEFORE),
        (torch.full((3, 4, 4), torch.nan), AS_BEFORE),
        (
            torch.zeros(5, 4, 3),
            "a tensor (5, 4, 3); give (H, W), or C of 1, 3 or 4 colours as (C, H, W)",
        ),
        (torch.zeros(3, 4, 4, dtype=torch.int64), f"an array (4, 4, 3) of int64; {FORM}"),
        (np.zeros((4, 5, 3)), f"an array (4, 5, 3) of float64; {FORM}"),
        (np.zeros((3, 4, 5), np.uint8), f"an array (3, 4, 5) of uint8; {FORM}"),
        (np.zeros(4, np.uint8), f"an array (4,) of uint8; {FORM}"),
        (np.zeros((0, 4), np.uint8), f"an array (0, 4) of uint8; {FORM}"),
        (3, "int; give a path, a PIL image, a NumPy array or a tensor"),
    ],
)
def test_what_is_no_image_is_refused(image, message):
    assert message_of(as_pixels, image) == f"not an image: {message}"


def test_a_pil_image_is_turned_as_its_exif_says(tmp_path):
    turned = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as image:
        assert as_pixels(image).shape == (3, 2, 3)


def test_boxes_are_numbers_of_any_sequence():
    assert as_boxes([[0, 0, 10, 10]]).dtype == np.float32
    assert as_boxes(None) is None
    assert message_of(as_boxes, [[0, 1], ["x"]]) == (
        "not boxes: [[0, 1], ['x']]; give numbers of shape (R, 4), x1 y1 x2 y2 in pixels"
    )


def test_other_channels_are_refused():
    assert message_of(as_pixels, np.zeros((2, 2), np.uint8), channels="RGB") == (
        'channels are unknown: \'RGB\'; choose "rgb" or "bgr"'
    )


@pytest.mark.slow
def test_an_extractor_returns_the_regions_of_the_stage(scene):
    config = ExtractConfig(weights="scenes", max_regions=12, **STATED)
    expected = load_extractor(BUNDLED["scenes"].path, config=config)(read_image(scene))
    regions = a2cap.extractor("scenes", device="cpu", max_regions=12)(scene)
    assert len(regions) == len(expected) > 0
    assert (regions.boxes == expected.boxes).all()
    assert (regions.features == expected.features).all()


def test_unusable_settings_of_an_extractor_are_refused():
    assert message_of(a2cap.extractor, "scenes", max_region=3, error=ConfigError) == (
        "1 problem in the configuration:\n"
        "  extract.max_region: unknown field; did you mean 'max_regions'?"
    )
