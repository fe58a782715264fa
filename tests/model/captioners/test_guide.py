"""The example of the guide on adding a captioner passes the contract."""

import inspect

import pytest

from tests.model import kinds
from tests.model.captioners import test_contract
from tests.plug_in import EXAMPLE, KIND, import_example

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
def test_the_example_keeps_the_contract(fusion, images, tmp_path, monkeypatch):
    settings = import_example(tmp_path, monkeypatch).DotConfig
    monkeypatch.setitem(kinds.KINDS, "dot", lambda **fields: settings(kind=KIND, width=8, **fields))
    for check in CHECKS:
        made = kinds.make("dot", alignment={"fusion": fusion})
        made.schedule_step.fill_(test_contract.STEP)
        check(made, images)


def test_the_example_is_short_and_every_check_is_run():
    assert len(EXAMPLE.splitlines()) <= 60
    assert len(CHECKS) >= 8
