"""Benchmarks, whose idle threads wait as those of a command do."""

import os
from importlib.util import find_spec

from a2cap.pipeline.runtime.openmp import set_wait_policy

set_wait_policy(os.environ)  # here, before a module of this folder loads torch

_NEEDED = (
    "torch torchvision numpy PIL click cv2 filelock fsspec h5py isal lmdb pycocoevalcap "
    "pydantic safetensors simplejpeg tensorboard xxhash yaml"
)
if _MISSING := [name for name in _NEEDED.split() if find_spec(name) is None]:
    raise SystemExit(f"benchmarks need {', '.join(_MISSING)}; install them, or a2 as in README.md")
