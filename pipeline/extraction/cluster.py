"""The shard of this process in a Slurm job array or under torchrun."""

from collections.abc import Mapping

from a2cap.data.errors import ConfigError
from a2cap.data.features.shard import Shard

_TORCHRUN = ("RANK", "WORLD_SIZE")
_SLURM = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT")


def shard_of(text: str, environment: Mapping[str, str]) -> Shard:
    """Return the shard i/N, or with `auto` the one that `environment` names.

    Raises ConfigError if it names none or two, or if i is not from 0 to N - 1.
    """
    # read only with "auto", so that a variable left behind in a shell has no effect
    if text != "auto":
        return Shard.parse(text)
    named = [names for names in (_SLURM, _TORCHRUN) if all(name in environment for name in names)]
    if len(named) != 1:
        found = "none" if not named else "both"
        raise ConfigError(
            "--shard auto needs a Slurm job array (SLURM_ARRAY_TASK_ID, SLURM_ARRAY_TASK_COUNT) "
            f"or torchrun (RANK, WORLD_SIZE), found {found}; write --shard i/N"
        )
    shard = Shard.parse("/".join(environment[name] for name in named[0]))
    if named[0] == _SLURM:
        _require_whole_array(environment, shard.count)
    return shard


def _require_whole_array(environment: Mapping[str, str], count: int) -> None:
    # ids of an array that starts at 1 or names single tasks are not shard numbers
    whole = {"SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": str(count - 1)}
    if any(environment.get(name, value) != value for name, value in whole.items()):
        raise ConfigError(
            f"the Slurm job array is not 0-{count - 1}; submit it with --array=0-{count - 1}, "
            "or write --shard i/N"
        )
