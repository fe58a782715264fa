"""The counter of kernels and waits itself."""

import pytest
import torch

from tests.kernels import fake_gpu

pytestmark = pytest.mark.slow  # loading torch's fake tensors takes seconds

WAITS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 1).any()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "boolean index": lambda x: x[x > 1],
    "boolean choice": lambda x: x.masked_select(x > 1),
    "list as an index": lambda x: x[[0, 1]],
    "tensor from the CPU": lambda x: torch.tensor([1.0, 2.0], device=x.device),
}


@pytest.mark.parametrize("form", WAITS)
def test_each_form_of_waiting_counts_once(form):
    with fake_gpu() as kernels:
        values = torch.zeros(3, device="cuda")
        kernels.take()
        WAITS[form](values)
        assert kernels.take()[1] == 1


def test_operations_count_and_views_do_not():
    with fake_gpu() as kernels:
        values = torch.zeros(3, 4, device="cuda")
        ahead = torch.zeros(4).to("cuda", non_blocking=True)
        assert kernels.take() == (2, 0)
        torch.addmm(ahead, values, values.T[:, :1].expand(4, 4)).view(12).relu_()
        assert kernels.take() == (2, 0)
        heads = torch.zeros(1, 2, 3, 4, device="cuda")
        merged = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        merged.transpose(1, 2).flatten(2)
        assert kernels.take() == (2, 0)  # zeros, attention
