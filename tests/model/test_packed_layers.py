import pytest
import torch
from torch import nn

from a2cap.model.packed_layers import _is_supported, packed_layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_packed_products_equal_those_of_torch_up_to_rounding(dtype):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(24, 37), nn.ReLU(), nn.Linear(37, 11, bias=False)).to(dtype)
    for shape in ((5, 24), (2, 3, 24), (0, 24)):
        states = torch.randn(shape, dtype=dtype)
        with torch.inference_mode():
            expected = network(states)
            with packed_layers(network):
                is_packed = ["forward" in vars(layer) for layer in network]
                assert is_packed == [_is_supported(dtype), False, _is_supported(dtype)]
                found = network(states)
            assert not any("forward" in vars(layer) for layer in network)
        assert found.dtype == dtype
        torch.testing.assert_close(
            found, expected, atol=1e-5 if dtype != torch.bfloat16 else 0.02, rtol=0.01
        )


def test_packing_ends_with_the_context_also_after_an_error():
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        before = layer(torch.ones(4))
        with pytest.raises(ValueError, match="stop"), packed_layers(layer):
            layer(torch.ones(4))
            raise ValueError("stop")
        layer.weight.add_(1)
        assert torch.allclose(layer(torch.ones(4)), before + 4)


def test_gradients_and_other_objects_are_left_as_they_are():
    layer = nn.Linear(4, 4)
    with packed_layers(layer), packed_layers(object()):
        layer(torch.ones(4)).sum().backward()
    assert layer.weight.grad.equal(torch.ones(4, 4))
