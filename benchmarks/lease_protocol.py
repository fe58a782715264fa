"""Simulated schedules of the shard protocol: workers, kills, stalls and delays on a virtual disk.

Runs 10,000 small schedules, in which collisions are frequent, then larger ones up to 1,000 workers
and 100,000 tasks. Every one is checked and can be repeated by its seed:

    python -m benchmarks.lease_protocol [--small 10000] [--large]
"""

import argparse
import time
from collections.abc import Iterable

from tests.pipeline.extraction.plan.simulation import Schedule, Sizes

LARGER = (
    Sizes(workers=30, tasks=1_000, images=4, kills=30, stops=10, stalls=20),
    Sizes(workers=100, tasks=10_000, images=2, kills=100, stops=20, stalls=50),
)
LARGE = Sizes(workers=1_000, tasks=100_000, images=1, kills=500, stops=100, stalls=200)


def main() -> None:
    """Run the schedules and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="First seed.")
    parser.add_argument("--large", action="store_true", help="Run 1,000 workers on 100,000 tasks.")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.small)
    report(f"{options.small:,} small schedules", (Schedule(seed) for seed in seeds))
    for sizes in (*LARGER, *([LARGE] if options.large else [])):
        what = f"{sizes.workers:,} workers, {sizes.tasks:,} tasks"
        report(what, [Schedule(options.first, sizes)])


def report(what: str, schedules: Iterable[Schedule]) -> None:
    """Run schedules, which raise Violation, and print what happened in them."""
    began = time.process_time()
    steps = losses = takeovers = images = added = 0
    for schedule in schedules:
        steps += schedule.run()
        losses += schedule.losses
        takeovers += schedule.disk.takeovers
        images += sum(schedule.disk.tasks.values())
        added += schedule.disk.added
    print(
        f"{what}: no violation; {steps:,} steps, {losses:,} kills and stalls, "
        f"{takeovers:,} takeovers, {images:,} images, {added / images - 1:.1%} computed twice, "
        f"{time.process_time() - began:.0f} CPU s"
    )


if __name__ == "__main__":
    main()
