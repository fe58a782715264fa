"""Erasure: Shapley values, orders and curves against slow references that drop the regions."""

from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, permutations, product

import numpy as np
import pytest
import torch

from a2cap.model import erasure
from a2cap.model.captioner import decoder_input
from a2cap.model.erasure import (
    SHARES,
    ErasureMeter,
    erase_regions,
    first_regions,
    kept_log_probs,
    shapley_values,
    subsets,
)
from a2cap.model.faithfulness import FaithfulnessMeter
from tests.quick import crossed


def test_shapley_values_equal_the_mean_gain_over_all_orders_of_arrival():
    values = np.random.default_rng(0).normal(size=(31, 3))
    worth = dict(zip(map(tuple, subsets(5).tolist()), values, strict=True))
    worth[(False,) * 5] = np.zeros(3)
    expected = np.zeros((3, 5))
    for order in permutations(range(5)):
        present = [False] * 5
        for region in order:
            before = worth[tuple(present)]
            present[region] = True
            expected[:, region] += (worth[tuple(present)] - before) / 120
    np.testing.assert_allclose(shapley_values(torch.from_numpy(values)), expected, atol=1e-14)


def test_equal_scores_rank_in_the_order_of_regions():
    first = first_regions(torch.tensor([0.5, 2.0, 0.5]), torch.tensor([1, 2]))
    assert first.tolist() == [[False, True, False], [True, True, False]]


def _without_padding(images, number):
    exists = images.region_mask[number]
    caption = images.captions[number, 0]
    return images.features[number, exists], images.boxes[number, exists], caption[caption != 0]


def _slow_log_prob(captioner, image, kept, position):
    """Return log p of one token by a captioner that is given the kept regions alone."""
    features, boxes, caption = image
    there = torch.ones(1, sum(kept), dtype=torch.bool)
    with torch.no_grad():
        memory = captioner.encode(features[None, kept], boxes[None, kept], there)
        log_probs = captioner.forward(memory, decoder_input(caption, bos=1)[None, None])
    return log_probs[0, 0, position, caption[position]].item()


@pytest.mark.parametrize(
    ("form", "at_once"), crossed(product(("none", "relative"), (False, True)), (1, 100, 4))
)
def test_a_removed_region_is_as_if_it_had_not_been_extracted(
    tiny, images, monkeypatch, form, at_once
):
    box_geometry, is_set = form
    captioner, image = tiny(box_geometry=box_geometry), _without_padding(images, 0)
    words = len(image[2])
    monkeypatch.setattr(erasure, "_LOGITS", at_once * words * captioner.vocabulary_size)
    log_probs = kept_log_probs(captioner, *image[:2], subsets(4), image[2], is_set=is_set)
    expected = [
        [_slow_log_prob(captioner, image, kept, position) for position in range(words)]
        for kept in subsets(4).tolist()
    ]
    torch.testing.assert_close(log_probs, torch.tensor(expected).double(), rtol=1e-6, atol=1e-6)


def test_threads_change_no_result_and_leave_the_number_of_threads(tiny, images, monkeypatch):
    captioner, image = tiny(box_geometry="relative"), _without_padding(images, 0)
    given = (*image[:2], subsets(4), image[2])
    monkeypatch.setattr(erasure, "_ROWS", 2)
    before, log_probs = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            log_probs.append(kept_log_probs(captioner, *given, is_set=True))
            with ThreadPoolExecutor(1) as other:
                assert other.submit(torch.get_num_threads).result() == threads
        finally:
            torch.set_num_threads(before)
    assert torch.equal(*log_probs)
    assert not log_probs[0].requires_grad


def _meters(captioner, images, *parts, limit=9):
    """Return the results over parts of the images, and the scores of each part."""
    meter, erased = FaithfulnessMeter(), ErasureMeter(images=limit)
    scores = []
    for part in parts or (slice(None),):
        mask = images.region_mask[part]
        batch = (images.features[part], images.boxes[part], mask, images.captions[part, 0])
        scores.append(meter.add_captions(captioner, *batch))
        erase_regions(erased, captioner, batch, scores[-1])
    return erased, scores


def _by_hand(captioner, images, scores):
    """Return comprehensiveness, sufficiency and tau with Shapley values of one order."""
    measured, start = [], 0
    for number in range(len(images.features)):
        image = _without_padding(images, number)
        regions, words = len(image[0]), len(image[2])
        for position in range(words):
            row = scores[start + position, :regions].tolist()
            order = sorted(range(regions), key=lambda region, row=row: -row[region])

            worth = {
                frozenset(i for i in range(regions) if kept[i]): _slow_log_prob(
                    captioner, image, kept, position
                )
                for kept in subsets(regions).tolist()
            }
            whole = worth[frozenset(order)]
            sizes = range(1, regions)
            removed = np.mean([whole - worth[frozenset(order[k:])] for k in sizes])
            alone = np.mean([whole - worth[frozenset(order[:k])] for k in sizes])
            values = np.zeros(regions)
            for arrival in permutations(range(regions)):
                for place, region in enumerate(arrival):
                    before = worth[frozenset(arrival[:place])] if place else 0.0
                    values[region] += worth[frozenset(arrival[: place + 1])] - before
            pairs = list(combinations(range(regions), 2))  # without ties
            agreements = [np.sign((row[i] - row[j]) * (values[i] - values[j])) for i, j in pairs]
            measured.append((removed, alone, np.mean(agreements)))
        start += words
    return np.mean(measured, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("fusion", ["none", "gate"])
def test_curves_and_correlations_equal_a_slow_reference(tiny, images, fusion):
    captioner = tiny(fusion=fusion)
    meter, [scores] = _meters(captioner, images)
    results = {result.order: result for result in meter.results()}
    masked = [] if fusion == "none" else ["aligned", "evidence"]
    assert list(results) == ["attention", *masked, "gradient", "random"]
    for name, order in scores.items():
        result = results[name]
        measured = (result.comprehensiveness, result.sufficiency, result.shapley)
        assert measured == pytest.approx(_by_hand(captioner, images, order), abs=1e-9)
        assert (result.words, result.exact) == (15, 15)


def test_many_regions_are_erased_as_few_are_but_have_no_exact_values(tiny, images, monkeypatch):
    few = _meters(tiny(), images)[0].results()
    monkeypatch.setattr(erasure, "EXACT_REGIONS", 1)
    for result, other in zip(few, _meters(tiny(), images)[0].results(), strict=True):
        assert (other.shapley, other.exact) == (None, 0)
        assert result.comprehensiveness == pytest.approx(other.comprehensiveness, abs=1e-12)
        assert result.sufficiency == pytest.approx(other.sufficiency, abs=1e-12)


def test_batches_change_no_erasure_and_its_limit_counts_images_with_something_to_remove(
    tiny, images
):
    captioner = tiny()
    together = _meters(captioner, images)[0].results()
    alone = _meters(captioner, images, slice(0, 1), slice(1, 2), slice(2, 3))[0].results()
    for result, other in zip(together, alone, strict=True):
        assert result.comprehensiveness == pytest.approx(other.comprehensiveness, abs=1e-12)
        assert result.shapley == pytest.approx(other.shapley, abs=1e-12)
    images.region_mask[0, 1:] = False
    meter, _ = _meters(captioner, images, limit=1)
    assert meter.erased == 1
    assert {result.words for result in meter.results()} == {6}  # of the second image
    assert _meters(captioner, images, limit=0)[0].results() == []


def _measured(values, *, sizes, empty=False):
    """Return the erasure of one word by a table: number of kept regions -> log-probability."""
    meter = ErasureMeter(images=1, sizes=sizes)
    scores = {"attention": -torch.arange(len(values) - 1.0)[None]}
    meter.measure(lambda kept: torch.tensor(values)[kept.sum(1)][:, None], scores, empty=empty)
    return meter.results()[0]


def test_curves_are_on_the_lines_between_the_measured_shares():
    values = [-9.0, -5.0, -4.0, -2.0, -1.0]  # of 0 to 4 kept regions
    curves = _measured(values, sizes=3)
    shares = [0, 0.25, 0.5, 0.75, 1]
    deletion = [0, 1, 3, 4, 4]  # level beyond the last region that stays
    insertion = [4, 4, 3, 1, 0]
    assert curves.deletion == pytest.approx(np.interp(SHARES, shares, deletion))
    assert curves.insertion == pytest.approx(np.interp(SHARES, shares, insertion))
    assert curves.all_removed is None and curves.of_images == ((1, 8 / 3, 8 / 3),)
    blind = _measured(values, sizes=3, empty=True)
    assert blind.all_removed == 8 and blind.comprehensiveness == curves.comprehensiveness
    assert blind.deletion == pytest.approx(np.interp(SHARES, shares, [0, 1, 3, 4, 8]))
    assert blind.insertion == pytest.approx(np.interp(SHARES, shares, [8, 4, 3, 1, 0]))
    coarse = _measured([*range(31)], sizes=2)
    assert coarse.deletion == pytest.approx(np.interp(SHARES, [0, 1 / 30, 29 / 30], [0, 1, 29]))
