import pytest
import torch

from a2cap.extract.detector.anchors import decode_boxes, encode_boxes


def boxes(count, seed):
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, generator=generator) * 200
    sides = torch.rand(count, 2, generator=generator) * 90 + 2
    return torch.cat([corners, corners + sides], dim=1)


@pytest.mark.parametrize("plus1", [True, False])
def test_encoding_is_the_inverse_of_decoding(plus1):
    true, anchors = boxes(100, 0), boxes(100, 1)
    deltas = encode_boxes(true, anchors, plus1=plus1)
    torch.testing.assert_close(
        decode_boxes(deltas, anchors, plus1=plus1), true, atol=1e-4, rtol=1e-5
    )
    again = encode_boxes(decode_boxes(deltas, anchors, plus1=plus1), anchors, plus1=plus1)
    torch.testing.assert_close(again, deltas, atol=1e-5, rtol=1e-4)
