"""Tests of OpenMP's wait policy."""

import os
import subprocess
import sys

import pytest

from a2cap.pipeline.runtime.openmp import set_wait_policy

POLICIES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def test_idle_threads_sleep_by_default():
    environment: dict[str, str] = {}
    set_wait_policy(environment)
    assert environment == {"OMP_WAIT_POLICY": "PASSIVE"}


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_set_by_the_user_is_kept(name):
    environment = {name: "7"}
    set_wait_policy(environment)
    assert environment == {name: "7"}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["import a2cap; a2cap.load", "import benchmarks.bench"])
def test_library_and_benchmarks_set_it_before_they_load_torch(program):
    # a finder that ends the process in the place of the import
    asked = (
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch': sys.exit(print(os.environ['OMP_WAIT_POLICY']))\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in POLICIES}
    done = subprocess.run(
        [sys.executable, "-c", asked + program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "PASSIVE\n"
