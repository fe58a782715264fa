from dataclasses import replace

import h5py
import numpy as np
import pytest

from a2cap.data.captions.attention_file import AttentionFile, CaptionAttention, write_attention
from tests.data.messages import message_of

RNG = np.random.default_rng(0)
SHAPES = {"000000000042": (3, 2), "été/7": (0, 4), "7": (2, 5)}


def attention(*shape, keep=True, gate=True):
    """Make up attention of (words, regions), or of (heads, words, regions)."""
    original = RNG.random(shape, dtype=np.float32)
    return CaptionAttention(
        original,
        original * 1.5 if keep else original,
        RNG.random(shape, dtype=np.float32) if keep else None,
        RNG.random(shape[:-1], dtype=np.float32) if gate else None,
    )


@pytest.mark.parametrize(("keep", "gate"), [(True, True), (True, False), (False, False)])
def test_written_attention_is_read_in_half_precision(tmp_path, keep, gate):
    given = {name: attention(*shape, keep=keep, gate=gate) for name, shape in SHAPES.items()}
    write_attention(tmp_path / "attention.h5", iter(given.items()))
    file = AttentionFile(tmp_path / "attention.h5")
    assert (list(file), len(file), "42" in file, "7" in file) == (list(SHAPES), 3, False, True)
    for name, written in given.items():
        for field in ("original", "aligned", "keep", "gate"):
            expected, read = getattr(written, field), getattr(file[name], field)
            if expected is None:
                assert read is None
            else:
                assert read.shape == expected.shape
                assert read.dtype == np.float32
                np.testing.assert_allclose(read, expected, rtol=1e-3, atol=1e-4)


def test_a_layer_and_a_head_are_chosen_by_number():
    layers = tuple(attention(2, 3, 4) for _ in range(2))
    whole = replace(attention(3, 4), layers=layers)
    assert whole.of(None) is whole
    assert (whole.of(2, 1).aligned == layers[1].aligned[0]).all()
    np.testing.assert_allclose(whole.of(1).keep, layers[0].keep.mean(axis=0))
    np.testing.assert_allclose(whole.of(1).gate, layers[0].gate.mean(axis=0))
    assert message_of(whole.of, 3) == "no such layer: 3; choose from 1 to 2"
    assert message_of(whole.of, 1, 3) == "no such head in layer 1: 3; choose from 1 to 2"
    assert message_of(whole.of, None, 3) == "head 3 of which layer; name the layer too"


def test_equal_attention_gives_equal_bytes_without_its_layers(tmp_path):
    given = [(name, attention(*shape)) for name, shape in SHAPES.items()]
    layered = [(name, replace(whole, layers=(whole,))) for name, whole in given]
    contents = []
    for name, content in (("one.h5", given), ("other.h5", layered)):
        write_attention(tmp_path / name, content)
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]


@pytest.mark.parametrize("shapes", [{}, {"7": (0, 3)}])
def test_images_and_captions_may_be_empty(tmp_path, shapes):
    given = [(name, attention(*shape)) for name, shape in shapes.items()]
    write_attention(tmp_path / "attention.h5", given)
    file = AttentionFile(tmp_path / "attention.h5")
    assert {name: file[name].original.shape for name in file} == shapes


def test_a_missing_file_and_a_missing_image_are_rejected(tmp_path):
    path = tmp_path / "attention.h5"
    assert message_of(AttentionFile, path) == f'no file {str(path)!r}; run "a2 evaluate" first'
    write_attention(path, [("7", attention(1, 1))])
    assert message_of(AttentionFile(path).__getitem__, "8") == (
        f"no attention for image '8' in {str(path)!r}; set evaluate.attention to all"
    )


def test_a_damaged_file_is_rejected(tmp_path):
    path = tmp_path / "attention.h5"
    write_attention(path, [("7", attention(2, 3))])
    with h5py.File(path, "a") as file:
        file["keep"].resize(5, axis=0)
    assert message_of(AttentionFile, path) == (
        f"damaged attention {str(path)!r} (keep has 5 values, expected 6); "
        'run "a2 evaluate --force"'
    )
