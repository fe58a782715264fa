"""Benchmarks, whose idle threads wait as those of a command do."""

import os

from a2cap.pipeline.runtime.openmp import set_wait_policy

set_wait_policy(os.environ)  # here, before a module of this folder loads torch
