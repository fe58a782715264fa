"""Extraction in shards as a Slurm job array: python docs/submitit_extract.py SHARDS OPTIONS...

The options are those of `a2 extract`. Needs submitit: pip install "a2cap[slurm]".
"""

import os
import subprocess
import sys
from dataclasses import dataclass

import submitit


@dataclass(frozen=True)
class ExtractShard:
    """One shard of `shards`, by its number."""

    shards: int
    options: tuple[str, ...]

    def __call__(self, number: int) -> None:
        """Extract the shard, or continue it."""
        command = [sys.executable, "-m", "a2cap.pipeline", "extract", *self.options]
        code = subprocess.call([*command, "--shard", f"{number}/{self.shards}"])
        if code not in (0, 3):  # 3: done, with skipped images
            raise RuntimeError(f"shard {number}/{self.shards} ended with exit code {code}")

    def checkpoint(self, number: int) -> submitit.helpers.DelayedSubmission:
        """Submit the shard again after a time-out or a preemption."""
        return submitit.helpers.DelayedSubmission(self, number)


def main() -> None:
    """Submit all shards, and wait for them."""
    shards, *options = sys.argv[1:]
    # SUBMITIT_CLUSTER=local runs them on this machine
    executor = submitit.AutoExecutor("slurm-logs", cluster=os.environ.get("SUBMITIT_CLUSTER"))
    executor.update_parameters(timeout_min=240, cpus_per_task=4, gpus_per_node=1)
    work = ExtractShard(int(shards), tuple(options))
    for job in executor.map_array(work, range(work.shards)):
        job.result()


if __name__ == "__main__":
    main()
