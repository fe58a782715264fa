from dataclasses import fields, replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from a2cap.data.batches.collate import EXACT, FEW_SHAPES, Batch, Item, collate
from a2cap.data.batches.loader import image_batches
from a2cap.data.features.store import FeatureStore
from tests.data.batches.items import (
    IDS,
    WIDTH,
    assert_all_equal,
    make_dataset,
    make_regions,
    whole_batches,
)
from tests.data.messages import message_of


def test_a_batch_has_the_documented_shapes_and_types(store):
    [batch] = whole_batches(make_dataset(store), batch_size=99)
    most = max(len(make_regions(image_id)) for image_id in IDS)
    assert sorted(batch.image_ids) == IDS
    assert (batch.features.shape, batch.features.dtype) == ((11, most, WIDTH), torch.float32)
    assert (batch.boxes.shape, batch.boxes.dtype) == ((11, most, 5), torch.float32)
    assert (batch.region_mask.shape, batch.region_mask.dtype) == ((11, most), torch.bool)
    assert (batch.tokens.shape, batch.tokens.dtype) == ((11, 5, 10), torch.int64)


def test_a_batch_contains_the_regions_of_its_images_and_zero_padding(store):
    for batch in whole_batches(make_dataset(store), batch_size=4):
        for row, image_id in enumerate(batch.image_ids):
            regions = FeatureStore(store)[image_id]
            exists = batch.region_mask[row]
            assert exists.tolist() == [index < len(regions) for index in range(len(exists))]
            features = torch.from_numpy(regions.features).float()
            assert torch.equal(batch.features[row, exists], features)
            assert batch.features[row, ~exists].count_nonzero() == 0
            assert batch.boxes[row, ~exists].count_nonzero() == 0


def test_boxes_are_relative_to_the_image_and_its_area():
    boxes = np.array([[0, 0, 200, 100], [50, 20, 150, 70]], np.float32)
    regions = replace(make_regions("1", count=2), boxes=boxes, width=200, height=100)
    batch = collate([Item("1", regions, None)])
    expected = [[0, 0, 1, 1, 1], [0.25, 0.2, 0.75, 0.7, 0.25]]
    torch.testing.assert_close(batch.boxes[0], torch.tensor(expected))


def test_few_shapes_add_only_padding(store):
    dataset = make_dataset(store)
    items = [dataset[0, index] for index in range(4)]
    exact, padded = (collate(items, rounding=rounding) for rounding in (EXACT, FEW_SHAPES))
    for name in ("features", "boxes", "region_mask"):
        values, more = getattr(exact, name), getattr(padded, name)
        assert more.shape[1] == 50
        assert torch.equal(more[:, : values.shape[1]], values)
        assert more[:, values.shape[1] :].count_nonzero() == 0
    assert padded.tokens.shape == (4, 5, 12)
    assert torch.equal(padded.tokens[..., : exact.tokens.shape[2]], exact.tokens)
    is_token = (padded.tokens != 0).flatten()
    count = len(exact.positions)
    assert len(exact.positions) == is_token.sum()
    assert torch.equal(padded.positions[:count], is_token.nonzero().flatten())
    assert len(padded.positions) == -(-count // 80) * 80
    assert not is_token[padded.positions[count:]].any()


def test_halves_of_a_batch_have_its_images_in_order(store):
    [batch] = whole_batches(make_dataset(store), batch_size=99)
    halves = batch.halves()
    assert [len(half.image_ids) for half in halves] == [6, 5]
    for name in ("features", "boxes", "region_mask", "tokens"):
        values = torch.cat([getattr(half, name) for half in halves])
        assert torch.equal(values, getattr(batch, name))
    assert sum((half.image_ids for half in halves), ()) == batch.image_ids
    [single, _] = halves[0].halves()[1].halves()[1:] * 2
    assert single.halves() == [single]


@settings(max_examples=20)
@given(
    lengths=st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=1, max_size=5),
    spare=st.integers(0, 5),
)
def test_tokens_are_cut_to_the_longest_caption_without_losing_any(lengths, spare):
    items = []
    for row, pair in enumerate(lengths):
        tokens = np.zeros((2, max(pair) + spare), np.int64)
        for number, length in enumerate(pair):
            tokens[number, :length] = 5
        items.append(Item(str(row), make_regions("1"), tokens))
    batch = collate(items)
    tokens = batch.tokens
    assert batch.positions.tolist() == (tokens.flatten() != 0).nonzero().flatten().tolist()
    assert tokens.shape == (len(lengths), 2, max(max(pair) for pair in lengths))
    assert (tokens != 0).sum(dim=2).tolist() == lengths


def test_all_tensors_of_a_batch_move_to_a_device(store):
    for batch in (
        next(whole_batches(make_dataset(store), batch_size=2)),
        next(iter(image_batches(store, IDS, batch_size=2))),
    ):
        moved = batch.to("meta")
        tensors = [getattr(moved, field.name) for field in fields(Batch)[1:]]
        assert {tensor.device.type for tensor in tensors if tensor is not None} == {"meta"}
        assert (moved.tokens is None) == (batch.tokens is None)
        assert moved.image_ids == batch.image_ids


def test_all_tensors_of_a_batch_are_pinned(store, monkeypatch):
    pinned = []
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda tensor: (pinned.append(tensor), tensor)[1]
    )
    items = [make_dataset(store)[0, index] for index in range(2)]
    batch = collate(items)
    assert pinned == []
    assert_all_equal([collate(items, pinned=True)], [batch])
    assert len(pinned) == 5


def test_an_image_without_a_region_is_named():
    regions = make_regions("1")
    arrays = {n: values for n, values in vars(regions).items() if isinstance(values, np.ndarray)}
    none = replace(regions, **{name: values[:0] for name, values in arrays.items()})
    assert message_of(collate, [Item("7", none, None)]) == (
        "image '7' has no region; leave it out, or extract it again"
    )
