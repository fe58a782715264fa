"""Sweeps: every combination of several values of settings, and mean scores over seeds.

A table of systems is a YAML file that lists configurations and phases of training; each combination
of both is a row (`configs/tables/table1.yaml`).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from a2cap.data.data_config import Section
from a2cap.data.errors import ConfigError
from a2cap.data.files.yaml_file import read_yaml

_MOST_POINTS = 10_000
_ALL = "all"
_NUMBER = r"(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
RANGE, WHOLE = re.compile(rf"{_NUMBER}\.\.{_NUMBER}"), re.compile(r"-?\d+")
# between commas; one in brackets or quotes belongs to the value
_VALUE = re.compile(r"""(?:[^,\[\]{}()"']|\[[^]]*\]|\{[^}]*\}|\([^)]*\)|"[^"]*"|'[^']*')+""")


@dataclass(frozen=True)
class Point:
    """One combination of a sweep.

    overrides: all of its settings.
    varied: those with several values in the sweep.
    setting: the same without seeds, as `fusion gate`.
    config: the file of its other settings, None for that of the command.
    """

    overrides: tuple[str, ...]
    varied: str
    setting: str
    config: Path | None = None


@dataclass(frozen=True)
class PointGroup:
    """Points whose captioners are evaluated together.

    members: `varied` of each point.
    varied, setting: as of a point.
    overrides: of the evaluation.
    """

    members: tuple[str, ...]
    varied: str
    setting: str
    overrides: tuple[str, ...] = ()


def ensembles_of_seeds(points: Sequence[Point]) -> list[PointGroup]:
    """Return the ensemble of the seeds of each setting that has several."""
    of_setting: dict[str, list[str]] = {}
    for point in points:
        of_setting.setdefault(point.setting, []).append(point.varied)
    names = {setting: f"{setting}, ensemble of {len(of)}" for setting, of in of_setting.items()}
    return [
        PointGroup(tuple(of), names[setting], names[setting])
        for setting, of in of_setting.items()
        if len(of) > 1
    ]


class _System(Section):
    """A system of a table: its configuration beside the table, and settings that differ."""

    config: str
    set: tuple[str, ...] = ()


class _Joined(Section):
    """Systems that are evaluated as an ensemble, and settings of the evaluation."""

    of: Annotated[tuple[str, ...], Field(min_length=2)]
    set: tuple[str, ...] = ()


class SystemsTable(Section):
    """Systems by name, settings of all, and those of each phase of training, which win.

    ensembles: of systems, by name.
    """

    set: tuple[str, ...] = ()
    phases: dict[str, tuple[str, ...]]
    systems: dict[str, _System]
    ensembles: dict[str, _Joined] = Field(default_factory=dict)

    def points(self, folder: Path, overrides: Sequence[str]) -> list[Point]:
        """Return the grid of every system in every phase.

        folder: of the table. overrides: as for `grid`, of all systems.
        """
        rows = []
        for phase, settings in self.phases.items():
            for name, system in self.systems.items():
                row, config = f"{name}, {phase}", folder / system.config
                for point in grid((*self.set, *system.set, *overrides, *settings)):
                    varied, setting = (
                        row if text == _ALL else f"{row}, {text}"
                        for text in (point.varied, point.setting)
                    )
                    rows.append(replace(point, varied=varied, setting=setting, config=config))
        return rows

    def joined(self, points: Sequence[Point]) -> list[PointGroup]:
        """Return the ensembles in every phase; points: as `points` returns them."""
        rows = []
        for phase, (name, ensemble) in product(self.phases, self.ensembles.items()):
            first, row = f"{ensemble.of[0]}, {phase}", f"{name}, {phase}"
            for point in points:
                if point.varied == first or point.varied.startswith(f"{first}, "):
                    rest = point.varied.removeprefix(first)
                    members = tuple(f"{member}, {phase}{rest}" for member in ensemble.of)
                    setting = row + point.setting.removeprefix(first)
                    rows.append(PointGroup(members, row + rest, setting, ensemble.set))
        return rows


def read_systems(path: Path) -> SystemsTable:
    """Read a table of systems; raise ConfigError for another file."""
    try:
        table = SystemsTable.model_validate(read_yaml(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "file"
        raise ConfigError(
            f"not a table of systems: {str(path)!r} ({place}: {first['msg'].lower()}); see "
            "configs/tables/table1.yaml"
        ) from error
    missing = [s.config for s in table.systems.values() if not (path.parent / s.config).is_file()]
    if missing:
        raise ConfigError(f"no configuration {missing[0]!r} beside {str(path)!r}; correct its path")
    for name, ensemble in table.ensembles.items():
        if name in table.systems or len({*ensemble.of}) < len(ensemble.of):
            raise ConfigError(
                f"ensemble {name!r} of {str(path)!r} has the name of a system, or a system twice; "
                "give it a name of its own, and each system once"
            )
    members = [member for ensemble in table.ensembles.values() for member in ensemble.of]
    if unknown := [member for member in members if member not in table.systems]:
        raise ConfigError(
            f"no system {unknown[0]!r} for an ensemble of {str(path)!r}; its systems are "
            f"{', '.join(table.systems)}"
        )
    return table


def grid(overrides: Sequence[str]) -> list[Point]:
    """Return the combinations of overrides such as `train.seed=0..4` and `train.lr=0.5,1`.

    The values of the last one change first. Raises ConfigError for an empty range and too many
    combinations.
    """
    choices = [_choices(override) for override in overrides]
    count = math.prod(map(len, choices))
    if count > _MOST_POINTS:
        raise ConfigError(f"the sweep has {count:,} combinations; name at most {_MOST_POINTS:,}")
    several = [number for number, values in enumerate(choices) if len(values) > 1]
    return [
        Point(
            combination,
            described([combination[number] for number in several]),
            described([combination[n] for n in several if _field(combination[n]) != "seed"]),
        )
        for combination in product(*choices)
    ]


def _choices(override: str) -> list[str]:
    """List the overrides of a range, a list, or a single value."""
    field, equals, text = override.partition("=")
    ends = RANGE.fullmatch(text.strip())
    if ends is None:
        values = [value.strip() for value in _VALUE.findall(text)] or [text]
        return [f"{field}{equals}{value}" for value in values]
    if not all(map(WHOLE.fullmatch, ends.groups())):
        raise ConfigError(
            f"{override!r} is a range of real numbers, whose values are searched, not listed; "
            "list some, or add --trials"
        )
    first, last = map(int, ends.groups())
    if last < first or last - first >= _MOST_POINTS:
        raise ConfigError(
            f"{override!r} is not a range; write FIRST..LAST, with at most {_MOST_POINTS:,} values"
        )
    return [f"{field}={value}" for value in range(first, last + 1)]


def _field(override: str) -> str:
    return override.partition("=")[0].strip().rpartition(".")[2]


def described(overrides: Sequence[str]) -> str:
    """Return overrides as text, `fusion gate, lr 0.5`; "all" without any."""
    assignments = (f"{_field(override)} {override.partition('=')[2]}" for override in overrides)
    return ", ".join(assignments) or _ALL
