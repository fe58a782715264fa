"""Shards by the environment of a cluster: only with `auto`, and never a wrong one."""

import pytest

from a2cap.data.errors import ConfigError
from a2cap.data.features.shard import Shard
from a2cap.pipeline.extraction.cluster import shard_of
from tests.data.messages import message_of

TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4"}
SLURM = {
    "SLURM_ARRAY_TASK_ID": "2",
    "SLURM_ARRAY_TASK_COUNT": "8",
    "SLURM_ARRAY_TASK_MIN": "0",
    "SLURM_ARRAY_TASK_MAX": "7",
}


def test_an_explicit_shard_ignores_the_environment():
    assert shard_of("1/3", {**TORCHRUN, **SLURM}) == Shard(1, 3)


def test_auto_is_the_task_of_a_slurm_array_or_the_rank_of_torchrun():
    assert shard_of("auto", SLURM) == Shard(2, 8)
    assert shard_of("auto", TORCHRUN) == Shard(2, 4)
    assert shard_of("auto", {"RANK": "2", **SLURM}) == Shard(2, 8)


@pytest.mark.parametrize(
    ("environment", "found"),
    [({}, "none"), ({"RANK": "0"}, "none"), ({**TORCHRUN, **SLURM}, "both")],
    ids=["nothing", "half", "both"],
)
def test_auto_is_refused_unless_exactly_one_cluster_is_found(environment, found):
    assert message_of(shard_of, "auto", environment, error=ConfigError) == (
        "--shard auto needs a Slurm job array (SLURM_ARRAY_TASK_ID, SLURM_ARRAY_TASK_COUNT) "
        f"or torchrun (RANK, WORLD_SIZE), found {found}; write --shard i/N"
    )


@pytest.mark.parametrize("bound", [("SLURM_ARRAY_TASK_MIN", "1"), ("SLURM_ARRAY_TASK_MAX", "9")])
def test_a_slurm_array_that_is_not_0_to_n_minus_1_is_refused(bound):
    assert message_of(shard_of, "auto", {**SLURM, **dict([bound])}, error=ConfigError) == (
        "the Slurm job array is not 0-7; submit it with --array=0-7, or write --shard i/N"
    )
