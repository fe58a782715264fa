"""Records: decoding inverts encoding, every flipped bit is found, bad regions are named."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save
from xxhash import xxh3_64_digest

from a2cap.data.features.feature_record import (
    CHECKSUM_SIZE,
    check_record,
    decode_regions,
    encode_regions,
    record_key,
)
from tests.data.features import stores
from tests.data.features.stores import refusal


def make_regions(count=3, width=8, seed="0", attributes=True):
    return stores.make_regions(seed, count=count, width=width, attributes=attributes)


def assert_equal(regions, expected, dtype="float32"):
    for name in ("boxes", "scores", "class_ids", "attribute_ids", "attribute_scores"):
        left, right = getattr(regions, name), getattr(expected, name)
        assert (left is None) == (right is None)
        if left is not None:
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
    assert regions.features.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(regions.features, expected.features.astype(dtype))
    assert (regions.width, regions.height) == (expected.width, expected.height)


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(
    count=st.integers(1, 12),
    width=st.integers(1, 40),
    seed=st.text(min_size=1, max_size=8),
    attributes=st.booleans(),
    dtype=st.sampled_from(["float16", "float32"]),
)
def test_decoding_inverts_encoding(count, width, seed, attributes, dtype):
    regions = make_regions(count, width, seed, attributes)
    regions = replace(regions, width=1)  # the least
    assert_equal(decode_regions(encode_regions(regions, dtype, "42"), "42"), regions, dtype)


def test_equal_regions_have_equal_records_in_any_memory_layout():
    regions = make_regions()
    strided = replace(
        regions,
        features=np.asfortranarray(regions.features),
        boxes=regions.boxes.astype(">f4"),
        class_ids=regions.class_ids.astype(np.int64),
    )
    assert encode_regions(strided, "float16", "42") == encode_regions(regions, "float16", "42")


@pytest.mark.parametrize(
    ("value", "text"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")], ids=str
)
@pytest.mark.parametrize(
    ("field", "name"), [("features", "feature"), ("boxes", "box"), ("scores", "score")]
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_values_that_are_not_finite_are_named(value, text, field, name, dtype):
    regions = make_regions()
    getattr(regions, field).flat[1] = value
    assert refusal(encode_regions, regions, dtype, "42") == (
        f"{name} of image '42' is not finite: {text}; check the extractor's weights and the image"
    )


def test_features_outside_the_range_of_float16_need_float32():
    regions = make_regions()
    regions.features[:] = -65504
    decoded = decode_regions(encode_regions(regions, "float16", "42"), "42")
    assert (decoded.features == -65504).all()
    assert decoded.features.flags.writeable and decoded.boxes.flags.writeable
    for value in (65505.0, -70000.0):
        regions.features[0, 0] = value
        assert refusal(encode_regions, regions, "float16", "42") == (
            f"feature of image '42' exceeds float16: {abs(value)} > 65504; "
            "store features as float32"
        )
        stored = decode_regions(encode_regions(regions, "float32", "42"), "42")
        assert stored.features[0, 0] == value


@pytest.mark.parametrize(
    ("field", "shape", "expected"),
    [
        ("boxes", (3, 5), "(3, 4)"),
        ("features", (2, 8), "(3, 8)"),
        ("features", (8,), "(3, 'F')"),
        ("features", (3, 0), "(3, 'F')"),
        ("scores", (2,), "(3,)"),
        ("class_ids", (3, 1), "(3,)"),
        ("attribute_ids", (4,), "(3,)"),
        ("attribute_scores", (4,), "(3,)"),
    ],
)
def test_wrong_shapes_are_refused(field, shape, expected):
    regions = replace(make_regions(), **{field: np.zeros(shape, np.float32)})
    assert refusal(encode_regions, regions, "float16", "42") == (
        f"{field} of image '42' have shape {shape}, expected {expected}; fix the extractor"
    )


def test_regions_that_cannot_be_stored_are_refused():
    def message(regions, dtype="float16"):
        return refusal(encode_regions, regions, dtype, "42")

    none, flat = make_regions(count=0), replace(make_regions(), height=0)
    assert message(none) == "image '42' has 0 regions; extract at least one per image"
    assert message(flat) == (
        "size of image '42' is 640x0; give the size of the original image in pixels"
    )
    assert message(make_regions(), "bfloat16") == (
        "feature dtype is 'bfloat16'; choose 'float16' or 'float32'"
    )


def test_every_flipped_bit_is_found():
    record = encode_regions(make_regions(count=1, width=1), "float16", "42")
    for bit in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        message = refusal(decode_regions, bytes(damaged), "42")
        assert message.startswith("record of image '42' is damaged")
    assert refusal(decode_regions, record[:-8] + bytes(range(8)), "42") == (
        f"record of image '42' is damaged: checksum {record[-8:].hex()}, "
        'expected 0001020304050607; run "a2 extract --force"'
    )


@pytest.mark.parametrize("length", [0, 3, 4, 20])
def test_a_truncated_record_is_refused(length):
    record = encode_regions(make_regions(), "float16", "42")
    # four zero bytes are the checksum of nothing, so the shortest cuts need the second check
    assert refusal(decode_regions, record[:length], "42").startswith("record of image '42' is")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("missing", [(), ("attribute_ids", "attribute_scores")], ids=len)
def test_a_record_is_what_safetensors_writes(dtype, missing):
    value = encode_regions(replace(make_regions(), **dict.fromkeys(missing)), dtype)
    body = save(load(value[:-CHECKSUM_SIZE]))
    assert value == body + xxh3_64_digest(body)
    # of no bytes, in the sanity test of xxHash's own repository
    check_record((0x2D06800538D394C2).to_bytes(8, "big"), "42")


@pytest.mark.parametrize(
    "body", [b"", b"not safetensors", save({"boxes": np.zeros(4, np.float32)})], ids=len
)
def test_a_valid_checksum_of_another_content_is_refused(body):
    message = refusal(decode_regions, body + xxh3_64_digest(body), "42")
    assert message.startswith("record of image '42' is not of this version: ")
    assert message.endswith('; run "a2 extract --force"')


def test_the_key_of_an_image_is_its_id_in_utf8():
    assert record_key("000000391895") == b"000000391895"
    assert record_key("straße/ö") == "straße/ö".encode()
    assert len(record_key("a" * 511)) == 511


def test_ids_that_lmdb_cannot_store_are_refused():
    for image_id, size in (("", 0), ("ä" * 256, 512)):
        assert refusal(record_key, image_id) == (
            f"image id {image_id!r} has {size} bytes; rename the image to 1 to 511"
        )
    assert refusal(record_key, "\udcff") == "image id '\\udcff' is not UTF-8; rename the image"
