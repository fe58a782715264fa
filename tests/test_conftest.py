"""The start of the tests: one checkout, and no skips of tests that A2_REQUIRE names."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import require_one_checkout

TESTS = """
import pytest

@pytest.fixture
def browser():
    pytest.skip("chromium is not installed")

@pytest.mark.chromium
def test_of_a_page(browser):
    pass

@pytest.mark.gpu
def test_of_a_device():
    pytest.skip("no GPU")

def test_of_anything():
    pass
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs three tests, of which two skip, and returns code and output."""
    shutil.copyfile(Path(__file__).with_name("conftest.py"), tmp_path / "conftest.py")
    (tmp_path / "test_few.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    chromium: a\n    gpu: b\n")

    def run(required):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
        environment = {**os.environ, "A2_REQUIRE": required}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.slow
def test_a_skipped_test_with_a_required_marker_fails(run):
    code, output = run("chromium")
    assert code == 1
    assert "1 passed, 1 skipped, 1 error" in output
    assert "A2_REQUIRE=chromium allows no skip; Skipped: chromium is not installed" in output


@pytest.mark.slow
def test_an_unknown_required_marker_is_an_error(run):
    code, output = run("chromium,chromiun")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "A2_REQUIRE names an unknown marker: 'chromiun'; see pyproject.toml" in output


def test_the_code_of_another_checkout_is_refused(tmp_path):
    here, other = tmp_path / "here", tmp_path / "other"
    require_one_checkout(here, {"a2cap": here / "a2cap", "a2cap.data": here / "data"})
    with pytest.raises(pytest.UsageError) as caught:
        require_one_checkout(here, {"a2cap": here / "a2cap", "a2cap.data": other / "data"})
    assert str(caught.value) == (
        f"the tests of {str(here)!r} would test 'a2cap.data' of {str(other / 'data')!r}; "
        f"run pip install --editable {str(here)!r} in the environment of these tests"
    )
