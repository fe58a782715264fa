import pytest

from a2cap.data.batches.dataset import CaptionDataset
from a2cap.data.batches.loader import image_batches
from a2cap.data.batches.sampling import caption_choice, epoch_order
from a2cap.data.errors import StoreError
from tests.data.batches.items import (
    IDS,
    Captions,
    assert_all_equal,
    make_batches,
    make_dataset,
    token_of,
    whole_batches,
)
from tests.data.messages import message_of


def test_tokens_are_the_chosen_captions(store):
    dataset = make_dataset(store, captions_per_image=3)
    order = epoch_order(11, seed=7, epoch=4)
    first = next(whole_batches(dataset, batch_size=4, epoch=4))
    assert first.image_ids == tuple(IDS[index] for index in order[:4])
    for row, index in enumerate(order[:4]):
        chosen = caption_choice(5, 3, seed=7, epoch=4, index=index)
        expected = [token_of(IDS[index], number) for number in chosen]
        assert first.tokens[row, :, 0].tolist() == expected


def test_another_epoch_has_another_order_and_other_captions(store):
    dataset = make_dataset(store, captions_per_image=1)
    [zero] = whole_batches(dataset, batch_size=11, epoch=0)
    [first] = whole_batches(dataset, batch_size=11, epoch=1)
    assert zero.image_ids != first.image_ids
    assert set(zero.tokens[:, 0, 0].tolist()) != set(first.tokens[:, 0, 0].tolist())


def test_grouping_by_caption_gives_every_pair_once(store):
    counts = {image_id: 1 + number % 3 for number, image_id in enumerate(IDS)}
    dataset = make_dataset(store, counts, grouping="caption")
    assert len(dataset) == sum(counts.values())
    batches = list(whole_batches(dataset, batch_size=4))
    assert len(batches) == len(make_batches(dataset, batch_size=4)) == 6
    assert {batch.tokens.shape[1] for batch in batches} == {1}
    pairs = [
        pair
        for batch in batches
        for pair in zip(batch.image_ids, batch.tokens[:, 0, 0].tolist(), strict=True)
    ]
    assert sorted(pairs) == [
        (image_id, token_of(image_id, number))
        for image_id in IDS
        for number in range(counts[image_id])
    ]


def test_batches_of_one_length_hold_every_pair_once_and_go_on_where_they_stopped(store):
    dataset = make_dataset(store, grouping="caption")
    groups = dataset.lengths()
    options = {"batch_size": 3, "groups": groups}
    batches = list(whole_batches(dataset, **options))
    assert (
        len(batches)
        == len(make_batches(dataset, **options))
        > len(make_batches(dataset, batch_size=3))
    )
    for batch in batches:
        assert (batch.tokens != 0).all()  # no padding
    tokens = [token for batch in batches for token in batch.tokens[:, 0, 0].tolist()]
    assert sorted(tokens) == [token_of(image_id, number) for image_id in IDS for number in range(5)]
    lengths = [batch.tokens.shape[2] for batch in batches]
    assert lengths != sorted(lengths)
    assert_all_equal(whole_batches(dataset, start=4, **options), batches[4:])
    other = [batch.image_ids for batch in whole_batches(dataset, epoch=1, **options)]
    assert other != [batch.image_ids for batch in batches]


def test_captions_over_max_words_are_left_out_and_counted(store, caplog):
    caplog.set_level("INFO")
    dataset = make_dataset(store, {IDS[0]: 3, IDS[8]: 1}, grouping="caption", max_words=2)
    # captions of 1, 2 and 3 words, and one of 9
    assert dataset.lengths().tolist() == [2, 3]
    assert dataset.image_ids == [IDS[0]]
    assert caplog.messages == [
        "left out 2 of 4 captions with more than 2 words; images without another: 1"
    ]
    message = message_of(make_dataset, store, {IDS[8]: 1}, max_words=2)
    assert message == "every caption has more than 2 words; raise train.max_words"


def test_images_with_too_few_captions_repeat_some(store):
    dataset = make_dataset(store, {IDS[0]: 2, IDS[1]: 7})
    [batch] = whole_batches(dataset, batch_size=2)
    assert batch.tokens.shape[:2] == (2, 5)
    distinct = [len(set(row)) for row in batch.tokens[:, :, 0].tolist()]
    assert dict(zip(batch.image_ids, distinct, strict=True)) == {IDS[0]: 2, IDS[1]: 5}


def test_max_regions_limits_the_regions_of_a_batch(store):
    [batch] = whole_batches(make_dataset(store, max_regions=2), batch_size=11)
    assert batch.features.shape[1] == 2
    [batch] = image_batches(store, IDS, batch_size=11, max_regions=2)
    assert batch.features.shape[1] == 2


def test_skipped_images_are_left_out(store):
    counts = dict.fromkeys([*IDS, "000000000099"], 5)
    dataset = make_dataset(store, counts, skipped=["000000000099", IDS[0]])
    assert dataset.image_ids == IDS[1:]
    assert len(dataset) == 10


def test_an_image_without_features_is_reported_before_the_first_batch(store):
    message = (
        f"no features for 1 images in {str(store)!r}: '000000000099'; run \"a2 extract\" first"
    )
    counts = {IDS[0]: 5, "000000000099": 5}
    assert message_of(make_dataset, store, counts, error=StoreError) == message
    assert message_of(image_batches, store, counts, batch_size=1, error=StoreError) == message


def test_an_empty_split_is_rejected(store):
    assert message_of(CaptionDataset, store, Captions(), "tarin", seed=7) == (
        "split 'tarin' has no images; check the annotations"
    )


@pytest.mark.parametrize("grouping", ["image", "caption"])
def test_an_image_without_captions_is_reported(store, grouping):
    assert message_of(make_dataset, store, {IDS[0]: 5, IDS[1]: 0}, grouping=grouping) == (
        f"image {IDS[1]!r} has no captions; remove it from the split"
    )
