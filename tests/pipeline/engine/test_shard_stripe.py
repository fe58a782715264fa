"""Stripes: named on the command line, or those of a Slurm job array and of torchrun."""

import pytest

from a2cap.data.errors import ConfigError
from a2cap.pipeline.engine.shard_stripe import Stripe
from tests.data.messages import message_of

TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4"}
SLURM = {
    "SLURM_ARRAY_TASK_ID": "2",
    "SLURM_ARRAY_TASK_COUNT": "8",
    "SLURM_ARRAY_TASK_MIN": "0",
    "SLURM_ARRAY_TASK_MAX": "7",
}


def test_the_stripes_share_the_parts():
    parts = list(range(10))
    stripes = [Stripe(number, 3).of(parts) for number in range(3)]
    assert stripes[1] == [1, 4, 7]
    assert sorted(part for stripe in stripes for part in stripe) == parts


def test_an_explicit_stripe_ignores_the_environment():
    assert Stripe.parse("1/3", {**TORCHRUN, **SLURM}) == Stripe(1, 3)
    assert str(Stripe(1, 3)) == "1/3"


@pytest.mark.parametrize("text", ["4/4", "1", "a/b", "-1/2", "1/0", "1/2/3", "0/9999999999"])
def test_other_texts_are_rejected(text):
    assert message_of(Stripe.parse, text, {}, error=ConfigError) == (
        f"shard is {text!r}; write i/N with i from 0 to N - 1, such as 0/4"
    )


def test_auto_is_the_task_of_a_slurm_array_or_the_rank_of_torchrun():
    assert Stripe.parse("auto", SLURM) == Stripe(2, 8)
    assert Stripe.parse("auto", TORCHRUN) == Stripe(2, 4)
    assert Stripe.parse("auto", {"RANK": "2", **SLURM}) == Stripe(2, 8)


@pytest.mark.parametrize(
    ("environment", "launchers"),
    [({}, "none"), ({"RANK": "0"}, "none"), ({**TORCHRUN, **SLURM}, "both")],
    ids=["nothing", "half", "both"],
)
def test_auto_is_rejected_unless_exactly_one_cluster_is_found(environment, launchers):
    assert message_of(Stripe.parse, "auto", environment, error=ConfigError) == (
        "--shard auto needs a Slurm job array (SLURM_ARRAY_TASK_ID, SLURM_ARRAY_TASK_COUNT) "
        f"or torchrun (RANK, WORLD_SIZE), found {launchers}; write --shard i/N"
    )


@pytest.mark.parametrize("bound", [("SLURM_ARRAY_TASK_MIN", "1"), ("SLURM_ARRAY_TASK_MAX", "9")])
def test_a_slurm_array_that_is_not_0_to_n_minus_1_is_rejected(bound):
    environment = {**SLURM, **dict([bound])}
    assert message_of(Stripe.parse, "auto", environment, error=ConfigError) == (
        "the Slurm job array is not 0-7; submit it with --array=0-7, or write --shard i/N"
    )
