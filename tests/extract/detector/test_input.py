import cv2
import numpy as np
import pytest

from a2cap.data.errors import InputError
from a2cap.extract.detector.conventions import CAFFE_MEAN
from a2cap.extract.detector.input import image_blob, image_scale, rounded_blob, rounded_size


# Heights and widths of the ten images of the published features, as they are and as scaled.
@pytest.mark.parametrize(
    ("height", "width", "scaled"),
    [
        (600, 333, (1000, 555)),
        (500, 333, (901, 600)),
        (333, 500, (600, 901)),
        (480, 640, (600, 800)),
        (640, 407, (943, 600)),
        (360, 640, (562, 1000)),
        (600, 1000, (600, 1000)),
        (1200, 1200, (600, 600)),
    ],
)
def test_the_shorter_side_becomes_600_unless_the_longer_passes_1000(height, width, scaled):
    scale = image_scale(height=height, width=width, min_side=600, max_side=1000)
    blob = image_blob(np.zeros((height, width, 3), np.uint8), scale=scale, mean=CAFFE_MEAN)
    assert blob.shape == (3, *scaled)


def test_blob_equals_caffe_written_out(make_image):
    image = make_image(0, 333, 500)
    scale = 600 / 333
    expected = cv2.resize(
        image.astype(np.float32) - np.array(CAFFE_MEAN, np.float32),
        None,
        fx=scale,
        fy=scale,
        interpolation=cv2.INTER_LINEAR,
    )
    blob = image_blob(image, scale=scale, mean=CAFFE_MEAN)
    assert blob.dtype == np.float32
    np.testing.assert_allclose(blob, expected.transpose(2, 0, 1), atol=1e-3)


def test_an_image_that_is_too_thin_is_refused():
    message = "image is too thin: 5000 x 4 pixels would scale to 1000 x 1; leave it out"
    with pytest.raises(InputError, match=message):
        image_scale(height=4, width=5000, min_side=600, max_side=1000)


# detectron2 @02b5c4e, ResizeShortestEdge.get_output_shape, worked out by hand.
@pytest.mark.parametrize(
    ("height", "width", "rounded"),
    [
        (407, 640, (800, 1258)),
        (640, 407, (1258, 800)),
        (300, 900, (444, 1333)),
        (10, 10, (800, 800)),
    ],
)
def test_detectron2_rounds_sizes(height, width, rounded):
    size = rounded_size(height=height, width=width, min_side=800, max_side=1333)
    assert size == rounded
    image = np.zeros((height, width, 3), np.uint8)
    assert rounded_blob(image, size=size, mean=(0, 0, 0)).shape == (3, *rounded)


def test_detectron2_resizes_bytes_and_then_subtracts_the_mean():
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    blob = rounded_blob(image, size=(20, 30), mean=(1.5, 2, 3))
    assert blob.dtype == np.float32
    bytes_again = blob + np.array([1.5, 2, 3], np.float32)[:, None, None]
    np.testing.assert_array_equal(bytes_again, np.rint(bytes_again))
    triangle = np.array([1, 3, 3, 1]) / 8  # half the size: each pixel is made of four per axis
    inside = np.einsum("yxc,y,x->c", image[9:13, 19:23].astype(float), triangle, triangle)
    np.testing.assert_allclose(bytes_again[:, 5, 10], inside, atol=1)
