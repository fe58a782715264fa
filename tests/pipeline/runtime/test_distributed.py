"""Tests of the ranks: sums, values and stops are equal on all of them."""

import signal

import pytest
import torch

from a2cap.pipeline.engine.interruption import Interrupted, StopRequest
from a2cap.pipeline.runtime.distributed import Ranks
from tests.quick import some_quick

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def test_without_a_process_group_there_is_one_rank():
    assert Ranks.current() == Ranks() == Ranks(rank=0, count=1)


def test_a_single_rank_keeps_its_own_values():
    single = Ranks()
    single.broadcast_tensors([torch.zeros(2)])
    stop = StopRequest()
    assert not single.agree_to_stop(stop)
    assert single.is_main
    assert single.sum(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert single.all_gather("x") == ["x"]
    assert not stop.pending
    stop(signal.SIGTERM, None)
    assert single.agree_to_stop(stop)


@pytest.mark.parametrize("count", some_quick((2, 3), 3))
def test_values_are_exchanged_between_all_ranks(together, count):
    def share(group):
        tensors = [torch.full((2,), float(group.rank)), torch.tensor(group.rank)]
        group.broadcast_tensors(tensors)
        return {
            "rank": (group.rank, group.count, group.is_main),
            "sum": group.sum(torch.tensor([group.rank, 1])).tolist(),
            "all": group.all_gather({"rank": group.rank}),
            "equal": [tensor.tolist() for tensor in tensors],
        }

    for rank, values in enumerate(together(count, share)):
        assert values == {
            "rank": (rank, count, rank == 0),
            "sum": [sum(range(count)), count],
            "all": [{"rank": other} for other in range(count)],
            "equal": [[0.0, 0.0], 0],
        }


@pytest.mark.slow
def test_a_signal_that_follows_its_own_broadcast_is_not_a_second_one(together):
    def stop(group):
        request = StopRequest()
        if group.rank == 1:
            request(signal.SIGTERM, None)
        group.agree_to_stop(request)
        if group.rank == 0:
            request(signal.SIGTERM, None)
            with pytest.raises(Interrupted):
                request(signal.SIGTERM, None)
        return request.signal_number

    assert together(2, stop) == [signal.SIGTERM] * 2
