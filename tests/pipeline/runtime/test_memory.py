"""Tests of the available memory: the minimum over the machine and its container."""

import pytest

from a2cap.pipeline.runtime import memory
from a2cap.pipeline.runtime.memory import available_memory

MACHINE = "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   2000 kB\n"


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Stand in for the kernel's files; none of them exists yet."""
    pairs = tuple((tmp_path / f"{v}" / "limit", tmp_path / f"{v}" / "used") for v in (2, 1))
    for limit, _ in pairs:
        limit.parent.mkdir()
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUPS", pairs)
    return tmp_path


def test_a_system_that_hides_its_memory_gives_none(system):
    assert available_memory() is None
    (system / "meminfo").write_text("MemTotal: 5 kB\n")
    assert available_memory() is None


def test_available_memory_counts_and_neither_free_memory_nor_a_container_without_limit(system):
    (system / "meminfo").write_text(MACHINE)
    assert available_memory() == 2000 * 1024
    (system / "2" / "limit").write_text("max\n")
    (system / "2" / "used").write_text("5\n")
    assert available_memory() == 2000 * 1024


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("limit", "used", "left"), [(900, 300, 600), (900, 1000, 0)])
def test_a_container_limit_lowers_the_available_memory(system, version, limit, used, left):
    (system / "meminfo").write_text(MACHINE)
    (system / f"{version}" / "limit").write_text(f"{limit}\n")
    (system / f"{version}" / "used").write_text(f"{used}\n")
    assert available_memory() == left


@pytest.mark.parametrize(("version", "more"), [(2, ""), (1, "total_inactive_file 250\n")])
def test_cached_files_of_a_container_count_as_available(system, version, more):
    (system / f"{version}" / "limit").write_text("900\n")
    (system / f"{version}" / "used").write_text("850\n")
    (system / f"{version}" / "memory.stat").write_text(f"anon 600\ninactive_file 200\n{more}")
    assert available_memory() == (300 if more else 250)
