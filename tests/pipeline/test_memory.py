"""Available memory: the least of what the machine and its containers leave."""

import pytest

from a2.pipeline import memory
from a2.pipeline.memory import available_memory

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
