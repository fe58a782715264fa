"""Tests of OpenMP's wait policy."""

import pytest

from a2cap.pipeline.runtime.openmp import set_wait_policy


def test_idle_threads_sleep_by_default():
    environment: dict[str, str] = {}
    set_wait_policy(environment)
    assert environment == {"OMP_WAIT_POLICY": "PASSIVE"}


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_a_policy_set_by_the_user_is_kept(name):
    environment = {name: "7"}
    set_wait_policy(environment)
    assert environment == {name: "7"}
