import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from a2cap.model.captioner import token_positions
from a2cap.model.layers.packing import Packing, by_image, from_images


def _packed(captions):
    """Return the packing of padded captions, 0 being padding."""
    return Packing.of(captions.shape, token_positions(captions, pad=0))


@st.composite
def _captions(draw):
    """Draw (B, K, L) captions of 0 to L tokens with at least one token."""
    images, rows, length = (draw(st.integers(1, 4)) for _ in range(3))
    counts = draw(
        st.lists(st.integers(0, length), min_size=images * rows, max_size=images * rows).filter(any)
    )
    is_token = torch.arange(length) < torch.tensor(counts)[:, None]
    tokens = is_token.flatten().long().cumsum(0) * is_token.flatten()  # 1, 2, 3 and so on
    return tokens.view(images, rows, length)


@given(_captions())
def test_rows_hold_each_token_once_at_its_position(captions):
    packing = _packed(captions)
    numbers = captions[captions != 0]
    states = numbers.double()[:, None].expand(-1, 3).contiguous()
    flags = torch.ones_like(numbers, dtype=torch.bool)
    by_caption = packing.by_caption.pad(states)[..., 0]
    is_token = captions.flatten(0, 1) != 0
    assert by_caption.shape == is_token.shape
    assert torch.equal(by_caption[is_token], numbers.double())
    assert torch.equal(packing.by_caption.pad_flags(flags), is_token)
    rows, is_in_row = packing.by_image.pad(states)[..., 0], packing.by_image.pad_flags(flags)
    for row, marked, image in zip(rows, is_in_row, captions, strict=True):
        count = int((image != 0).sum())
        assert marked.tolist() == [True] * count + [False] * (len(marked) - count)
        assert torch.equal(row[:count], image[image != 0].double())
    assert is_in_row.any(dim=0).all(), "no column is padding alone"
    for one in (packing.by_caption, packing.by_image):
        assert torch.equal(one.pack(one.pad(states)), states)


@pytest.mark.parametrize("rows", ["by_caption", "by_image"])
def test_gradients_are_those_of_a_product_with_a_matrix_of_positions(rows):
    captions = torch.tensor([[[1, 2, 3], [4, 0, 0]], [[5, 0, 0], [0, 0, 0]]])
    one = getattr(_packed(captions), rows)
    placing = torch.zeros(len(one.sources), 5, dtype=torch.float64)
    placing[one.positions, torch.arange(5)] = 1
    states = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(*one.shape, 4, dtype=torch.float64)
    weights[~one.pad_flags(torch.ones(5, dtype=torch.bool))] = (
        0  # what attends to padding is dropped
    )
    [found] = torch.autograd.grad((one.pad(states) * weights).sum(), states)
    assert torch.equal(found, placing.T @ weights.flatten(0, 1))
    padded = torch.randn(*one.shape, 4, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(5, 4, dtype=torch.float64)
    [found] = torch.autograd.grad((one.pack(padded) * gradient).sum(), padded)
    assert torch.equal(found.flatten(0, 1), placing @ gradient)
    torch.testing.assert_close(one.pack(padded), placing.T @ padded.flatten(0, 1))


def test_tokens_and_positions_are_those_of_the_captions():
    captions = torch.tensor([[[7, 8, 0], [9, 0, 0]], [[4, 5, 6], [0, 0, 0]]])
    table = torch.arange(3.0)[:, None].expand(-1, 2)
    tokens, positions = _packed(captions).inputs(captions.flatten(0, 1), table)
    assert tokens.tolist() == [7, 8, 9, 4, 5, 6]
    assert positions[:, 0].tolist() == [0, 1, 0, 0, 1, 2]


def test_without_a_packing_the_rows_of_an_image_are_joined():
    states = torch.arange(24.0).view(4, 3, 2)
    rows = by_image(states, 2, None)
    assert torch.equal(rows, states.view(2, 6, 2))
    assert torch.equal(from_images(rows, states, None), states)
