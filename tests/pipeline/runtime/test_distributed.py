"""Several processes that train together: sums, values and stops are the same in all of them."""

import signal

import pytest
import torch
import torch.distributed as dist
from torch import nn

from a2cap.pipeline.engine.interruption import Interrupted, StopRequest
from a2cap.pipeline.runtime import distributed as processes
from a2cap.pipeline.runtime.distributed import LostProcesses, Processes

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def parameters(*sizes):
    return [nn.Parameter(torch.zeros(size)) for size in sizes]


def test_a_process_is_alone_where_there_is_no_group():
    assert Processes.connected() == Processes() == Processes(rank=0, count=1)


def test_a_process_alone_has_all_there_is():
    alone = Processes()
    [parameter] = parameters((2, 3))
    alone.add_gradients([parameter])
    alone.make_equal([parameter])
    stop = StopRequest()
    assert not alone.agree_to_stop(stop)
    assert alone.leads
    assert alone.total(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert alone.gathered("x") == ["x"]
    assert alone.of_first("x") == "x"
    assert parameter.grad is None
    assert not stop.pending
    stop(signal.SIGTERM, None)
    assert alone.agree_to_stop(stop)


@pytest.mark.parametrize("count", [2, 3])
def test_values_are_shared_among_all(together, count):
    def share(group):
        tensors = [torch.full((2,), float(group.rank)), torch.tensor(group.rank)]
        group.make_equal(tensors)
        return {
            "who": (group.rank, group.count, group.leads),
            "total": group.total(torch.tensor([group.rank, 1])).tolist(),
            "gathered": group.gathered({"rank": group.rank}),
            "first": group.of_first(f"of {group.rank}"),
            "equal": [tensor.tolist() for tensor in tensors],
        }

    for rank, found in enumerate(together(count, share)):
        assert found == {
            "who": (rank, count, rank == 0),
            "total": [sum(range(count)), count],
            "gathered": [{"rank": other} for other in range(count)],
            "first": "of 0",
            "equal": [[0.0, 0.0], 0],
        }


@pytest.mark.parametrize("bucket", [1, 7, 1000])
def test_gradients_are_summed_whatever_the_size_of_a_message(together, monkeypatch, bucket):
    """The second parameter has no gradient in process 1, and the third in none."""
    monkeypatch.setattr(processes, "_BUCKET", bucket)

    def add(group):
        found = parameters((2, 3), 4, (), 5)
        for number, parameter in enumerate(found):
            if number != 2 and (group.rank, number) != (1, 1):
                parameter.grad = torch.full_like(parameter, 10.0**group.rank + number)
        group.add_gradients(found)
        return [(tuple(p.grad.shape), p.grad.unique().tolist()) for p in found]

    expected = [((2, 3), [11.0]), ((4,), [2.0]), ((), [0.0]), ((5,), [17.0])]
    assert together(2, add) == [expected, expected]


def test_gradients_of_several_types_are_summed_each_in_its_own(together):
    def add(group):
        found = [
            nn.Parameter(torch.zeros(2, dtype=dtype)) for dtype in (torch.float32, torch.float64)
        ]
        for parameter in found:
            parameter.grad = torch.ones_like(parameter)
        group.add_gradients(found)
        return [(parameter.grad.dtype, parameter.grad.tolist()) for parameter in found]

    expected = [(torch.float32, [2.0, 2.0]), (torch.float64, [2.0, 2.0])]
    assert together(2, add) == [expected, expected]


def test_a_signal_to_one_process_stops_all_of_them(together):
    def stop(group):
        request = StopRequest()
        before = group.agree_to_stop(request)
        if group.rank == 1:
            request(signal.SIGTERM, None)
        return before, group.agree_to_stop(request), request.signal_number

    assert together(3, stop) == [(False, True, signal.SIGTERM)] * 3


def test_a_signal_that_comes_while_they_agree_is_for_the_next_time(together, monkeypatch):
    add_up = dist.all_reduce

    def add_up_and_signal(*arguments):
        add_up(*arguments)
        if dist.get_rank() == 1 and not request.pending:
            request(signal.SIGTERM, None)

    def stop(group):
        return [(group.agree_to_stop(request), request.pending) for _ in range(2)]

    request = StopRequest()
    monkeypatch.setattr(dist, "all_reduce", add_up_and_signal)
    unaware, hit = together(2, stop)
    assert unaware == [(False, False), (True, True)]
    assert hit == [(False, True), (True, True)]


def test_the_same_signal_that_comes_a_moment_later_does_not_count_as_a_second_one(together):
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


def test_a_process_that_is_gone_is_said_to_be(together):
    def leave(group):
        if group.rank == 1:
            return None
        with pytest.raises(LostProcesses) as error:
            group.total(torch.zeros(1))
        return str(error.value)

    said, _ = together(2, leave)
    assert said.startswith("process 0 of 2 lost the others (")
    assert said.endswith("); see what they say, then run the same command again")
