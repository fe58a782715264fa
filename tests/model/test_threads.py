"""Work in threads: in order, with one thread of torch each."""

from threading import Barrier, current_thread, main_thread

import pytest
import torch

from a2cap.model.threads import map_in_threads


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_parts_are_worked_on_at_once_with_one_thread_of_torch_each(two_threads):
    both = Barrier(2, timeout=60)

    def work(part):
        both.wait()  # for the other thread
        return part, torch.get_num_threads()

    assert map_in_threads(work, range(4)) == [(part, 1) for part in range(4)]
    assert torch.get_num_threads() == 2
    # also of threads that start later
    assert map_in_threads(lambda _: torch.get_num_threads(), [0]) == [2]


def test_one_part_or_one_thread_runs_in_the_calling_thread(two_threads):
    def is_here(_):
        return current_thread() is main_thread()

    assert map_in_threads(is_here, [0]) == [True]
    torch.set_num_threads(1)
    assert map_in_threads(is_here, [0, 1]) == [True, True]


def test_an_error_is_raised_and_torch_has_its_threads_again(two_threads):
    with pytest.raises(ZeroDivisionError):
        map_in_threads(lambda part: 1 // part, [1, 0])
    assert torch.get_num_threads() == 2
