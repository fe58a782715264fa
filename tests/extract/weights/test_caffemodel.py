"""Protocol buffers field by field; whole models are in test_checkpoint_layouts."""

import numpy as np
import pytest

from a2cap.data.errors import WeightsError
from a2cap.extract.weights.caffemodel import load_caffemodel, read_blobs
from tests.extract.weights.test_checkpoint_layouts import bytes_field

# NetParameter{name: "n", layer{name: "ip", blobs{shape{dim: 2, dim: 300}}, blobs{...}}}
NOT_WHOLE = "it is not a whole protocol buffer"
SHAPE = bytes([0x3A, 3, 0x0A, 1, 2])


def layer(name: bytes, *blobs: bytes, after: bytes = b"") -> bytes:
    content = b"".join(bytes_field(7, blob) for blob in blobs)
    return bytes_field(100, bytes_field(1, name) + content + after)


def floats(*values: float) -> bytes:
    return bytes_field(5, np.array(values, "<f4").tobytes())


@pytest.fixture
def write(tmp_path):
    def to_file(content: bytes):
        (tmp_path / "a.caffemodel").write_bytes(content)
        return tmp_path / "a.caffemodel"

    return to_file


def test_layers_with_weights_are_read_and_the_rest_is_skipped():
    noise = b"\x0a\x03net" + b"\x28\x01" + b"\x1d\0\0\0\0" + b"\x21" + bytes(8)
    layers = layer(b"relu") + layer(b"ip", SHAPE + floats(1, 2), floats(3))
    blobs = read_blobs(noise + layers)
    assert blobs.keys() == {"ip"}
    assert [array.tolist() for array in blobs["ip"]] == [[1, 2], [3]]


def test_shapes_are_read_packed_and_one_by_one():
    packed, single = bytes([0x3A, 4, 0x0A, 2, 2, 1]), bytes([0x3A, 4, 0x08, 1, 0x08, 2])
    content = layer(b"ip", packed + floats(1, 2), single + floats(1, 2))
    blobs = read_blobs(content)
    assert [array.shape for array in blobs["ip"]] == [(2, 1), (1, 2)]


def test_old_sizes_lose_their_leading_ones():
    sizes = bytes([0x08, 1, 0x10, 1, 0x18, 1, 0x20, 2])
    blobs = read_blobs(layer(b"ip", sizes + floats(1, 2)))
    assert blobs["ip"][0].shape == (2,)


def test_statistics_are_divided_by_their_count(write):
    blobs = (SHAPE + floats(6, 8), SHAPE + floats(2, 4), floats(2))
    tensors = load_caffemodel(write(layer(b"bn_conv1", *blobs)))
    norm = "backbone.stem.conv1.norm"
    assert tensors[f"{norm}.running_mean"].tolist() == [3, 4]
    assert tensors[f"{norm}.running_var"].tolist() == [1, 2]


def test_a_count_of_nothing_gives_zeros_as_in_caffe(write):
    tensors = load_caffemodel(write(layer(b"bn_conv1", floats(6), floats(2), floats(0))))
    assert [tensor.tolist() for tensor in tensors.values()] == [[0], [0]]


def test_an_epsilon_of_its_own_is_read(write):
    # LayerParameter{batch_norm_param{eps: 0.001}}
    settings = b"\xda\x08\x05\x1d" + np.array(1e-3, "<f4").tobytes()
    whole = layer(b"bn_conv1", floats(6), floats(2), floats(2), after=settings)
    tensors = load_caffemodel(write(whole))
    assert tensors["backbone.stem.conv1.norm.eps"].tolist() == pytest.approx([1e-3])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no layer has weights"),
        (b"\x0a\x03net", "no layer has weights"),
        (b"\x0a\x7fnet", NOT_WHOLE),
        (b"\x0a" + b"\xff" * 12, NOT_WHOLE),
        (b"\x0a\x01n\xa2", NOT_WHOLE),
        (b"\x0a\x01n\x0b", NOT_WHOLE),
        (layer(b"ip", SHAPE + floats(1)), "1 numbers do not fill [2]"),
        (layer(b"ip", b"\x2a\x03abc"), "3 bytes are not floats"),
        # sizes of nothing: 0 x 2^63
        (
            layer(b"ip", b"\x3a\x0d\x08\0\x08" + b"\x80" * 9 + b"\x01"),
            f"0 numbers do not fill {[0, 2**63]}",
        ),
        (
            layer(b"bn_conv1", floats(6), floats(2), SHAPE + floats(1, 1)),
            "can only convert an array",
        ),
        (b"\x0a" + b"\xff" * 9 + b"\x01", NOT_WHOLE),
        pytest.param(
            10_000 * layer(b"ip", floats(1)), "it has 10,000 arrays or more", id="many arrays"
        ),
        # 40 sizes of 1 for one number
        (layer(b"ip", b"\x3a\x2a\x0a\x28" + b"\x01" * 40 + floats(1)), "1 numbers do not fill"),
        # a normalisation without its count
        (layer(b"bn_conv1", floats(6), floats(2)), "layer 'bn_conv1' has 2 blobs, not 3"),
    ],
)
def test_a_damaged_file_is_refused(write, content, reason):
    with pytest.raises(WeightsError) as error:
        load_caffemodel(write(content))
    assert str(error.value).startswith(f"caffemodel 'a.caffemodel' is damaged: {reason}")
    assert str(error.value).endswith("; download it again")
