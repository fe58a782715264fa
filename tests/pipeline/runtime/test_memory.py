"""Available memory: the least of what the machine and its containers leave."""

import ctypes
import subprocess
import sys

import pytest

from a2cap.pipeline.runtime import memory
from a2cap.pipeline.runtime.memory import available_memory, keep_freed_memory

MACHINE = "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   2000 kB\n"


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Files as the kernel shows them, none of them there yet."""
    pairs = tuple((tmp_path / f"limit {v}", tmp_path / f"used {v}") for v in (2, 1))
    monkeypatch.setattr(memory, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_LIMITS", pairs)
    return tmp_path


def test_where_the_system_says_nothing_nothing_is_known(system):
    assert available_memory() is None
    (system / "meminfo").write_text("MemTotal: 5 kB\n")
    assert available_memory() is None


def test_what_the_machine_has_available_counts_and_not_what_is_free(system):
    (system / "meminfo").write_text(MACHINE)
    assert available_memory() == 2000 * 1024


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("limit", "used", "left"), [(900, 300, 600), (900, 1000, 0)])
def test_a_container_leaves_less(system, version, limit, used, left):
    (system / "meminfo").write_text(MACHINE)
    (system / f"limit {version}").write_text(f"{limit}\n")
    (system / f"used {version}").write_text(f"{used}\n")
    assert available_memory() == left


def test_a_container_without_a_limit_leaves_what_the_machine_has(system):
    (system / "meminfo").write_text(MACHINE)
    (system / "limit 2").write_text("max\n")
    (system / "used 2").write_text("5\n")
    assert available_memory() == 2000 * 1024


def test_this_machine_has_some():
    assert available_memory() is None or available_memory() > 0


PAGES = """
import resource, sys
import torch
from a2cap.pipeline.runtime.memory import keep_freed_memory

torch.set_num_threads(1)
if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(15):
    torch.ones(25_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    torch.ones(25_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def new_pages(how):
    """Pages that the system gave to five allocations of 100 MB, after some such."""
    command = [sys.executable, "-c", PAGES, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_memory_that_is_kept_is_not_asked_for_again():
    assert new_pages("kept") < 100 < new_pages("returned")


class OtherLibrary:
    """A C library that has nothing; it notes what it is asked for."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        self.asked.append(name)
        raise AttributeError(name)


def test_another_c_library_keeps_what_it_likes(monkeypatch):
    library = OtherLibrary()
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    keep_freed_memory()
    assert library.asked == ["mallopt"]
