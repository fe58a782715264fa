import pytest
import torch

from a2cap.model.layers.kv_cache import FIRST_WORDS, WordStore, next_places, visible_words

B, H, K, D = 2, 2, 3, 4


def _words(number: int) -> torch.Tensor:
    return torch.arange(B * H * K * D).reshape(B, H, K, D) + 1000.0 * number


def _filled(count: int) -> WordStore:
    store = WordStore.of(_words(0), -_words(0))
    for number in range(1, count):
        store = store.appended(_words(number), -_words(number))
    return store


@pytest.mark.parametrize("count", [1, 2, FIRST_WORDS, FIRST_WORDS + 1, 2 * FIRST_WORDS + 3])
def test_a_store_holds_all_words_in_their_order(count):
    store = _filled(count)
    expected = torch.cat([_words(number) for number in range(count)], dim=2)
    assert torch.equal(store.keys, expected)
    assert torch.equal(store.values, -expected)


def test_two_continuations_of_one_state_do_not_meet():
    before = _filled(2)
    first = before.appended(_words(7), _words(7))
    second = before.appended(_words(8), _words(8))
    longer = first.appended(_words(9), _words(9))
    assert torch.equal(first.keys[:, :, -K:], _words(7))
    assert torch.equal(second.keys[:, :, -K:], _words(8))
    assert torch.equal(longer.keys[:, :, -2 * K :], torch.cat((_words(7), _words(9)), dim=2))
    assert before.keys.shape[2] == 2 * K


def test_words_are_appended_without_a_copy_of_those_before():
    before = _filled(2)
    after = before.appended(_words(2), _words(2))
    assert after.keys.data_ptr() == before.keys.data_ptr()


def test_gradients_reach_every_word():
    words = [_words(number).requires_grad_() for number in range(4)]
    store = WordStore.of(words[0], words[0])
    for added in words[1:]:
        store.keys.sum().backward()
        store = store.appended(added, added)
    store.keys.sum().backward()
    assert [added.grad.unique().tolist() for added in words] == [[4.0], [3.0], [2.0], [1.0]]
    with torch.no_grad():
        store.appended(_words(9), _words(9))
    assert torch.equal(store.keys[:, :, -K:], words[3])


def test_a_store_of_inference_mode_can_be_continued_outside_it_and_back():
    with torch.inference_mode():
        store = _filled(2)
    with torch.no_grad():
        outside = store.appended(_words(2), _words(2))
    with torch.inference_mode():
        again = outside.appended(_words(3), _words(3))
    assert torch.equal(again.keys, torch.cat([_words(number) for number in range(4)], dim=2))


def test_rows_find_their_words_after_reordering():
    places = next_places(torch.empty(2 * K, 0, dtype=torch.int64), K)
    assert places.tolist() == [[0], [1], [2]] * 2
    crossed = places[[1, 1, 0, 3, 4, 5]]
    places = next_places(crossed, K)
    assert places.tolist() == [[1, 3], [1, 4], [0, 5], [0, 3], [1, 4], [2, 5]]
    seen = visible_words(places, K)
    assert seen.shape == (2, 1, K, 2 * K)
    assert [row.nonzero().flatten().tolist() for row in seen.flatten(0, 2)] == places.tolist()


def test_a_single_row_sees_all_words():
    assert visible_words(torch.tensor([[0, 1, 2]]), 1) is None
