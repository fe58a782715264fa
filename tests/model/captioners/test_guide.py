"""The example of the guide on adding a captioner passes the contract."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from a2cap.model.captioners.kinds import CLASSES
from tests.model import kinds
from tests.model.captioners import test_contract

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "adding-a-captioner.md"
[EXAMPLE] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
CHECKS = [
    check
    for name, check in vars(test_contract).items()
    if name.startswith("test_")
    and list(inspect.signature(check).parameters) == ["captioner", "images"]
]


@pytest.mark.parametrize(
    "fusion",
    [
        fusion if fusion == "gate" else pytest.param(fusion, marks=pytest.mark.slow)
        for fusion in kinds.FUSIONS
    ],
)
def test_the_example_keeps_the_contract(fusion, images, monkeypatch):
    names: dict[str, Any] = {}
    exec(compile(EXAMPLE, GUIDE.name, "exec"), names)
    monkeypatch.setitem(kinds.KINDS, "dot", lambda **fields: names["DotConfig"](width=8, **fields))
    monkeypatch.setitem(CLASSES, "dot", names["DotCaptioner"])
    for check in CHECKS:
        made = kinds.make("dot", alignment={"fusion": fusion})
        made.schedule_step.fill_(test_contract.STEP)
        check(made, images)


def test_the_example_is_short_and_every_check_is_run():
    assert len(EXAMPLE.splitlines()) <= 80
    assert len(CHECKS) >= 8
