"""Packaging: the installed files are those of the folders, and type checkers find them."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import entry_points, version
from importlib.resources import files
from pathlib import Path

import pytest

import a2cap

ROOT = Path(__file__).parents[1]
FOLDERS = ("pipeline", "extract", "model", "data")
PACKED = (*FOLDERS, "configs")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


URL = "https://project.example/a2"


def output(*command, cwd=ROOT):
    """Run a program and return its output; fail if it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked(*patterns):
    """Return the tracked files that exist, as POSIX paths."""
    names = output("git", "ls-files", "-z", "--", *patterns).split("\0")
    return sorted(name for name in names if name and (ROOT / name).is_file())


def test_every_folder_with_modules_is_a_package():
    modules = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert all((path.parent / "__init__.py").is_file() for path in modules)


def test_folder_x_is_a2cap_x():
    folders = {f"a2cap.{name}": name for name in PACKED}
    assert PROJECT["tool"]["setuptools"]["package-dir"] == {"a2cap": "a2cap", **folders}


@pytest.mark.parametrize("folder", FOLDERS)
def test_type_checkers_find_each_folder_through_its_link(folder):
    link = ROOT / ".typing" / "a2cap" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / ".." / folder
    assert (link / "py.typed").is_file()


def test_the_command_is_installed_and_has_the_version_of_the_project():
    [command] = entry_points(group="console_scripts", name="a2")
    assert command.value == PROJECT["project"]["scripts"]["a2"] == "a2cap.pipeline.cli.main:main"
    assert version("a2cap") == a2cap.__version__


def test_data_files_are_in_the_package():
    assert (files("a2cap.pipeline") / "demo.yaml").is_file()
    assert (files("a2cap.pipeline.report") / "templates" / "report.html").is_file()


@pytest.mark.slow
def test_the_module_runs_as_the_command():
    answer = output(sys.executable, "-m", "a2cap.pipeline", "--version")
    assert answer == f"a2, version {a2cap.__version__}\n"


def test_the_constraints_without_cuda_differ_in_the_build_alone():
    plain, cpu = (
        (ROOT / name).read_text(encoding="utf-8").splitlines()
        for name in ("constraints.txt", "constraints-cpu.txt")
    )
    pins = [line.removesuffix("+cpu") for line in cpu if "==" in line]
    assert "-c constraints.txt" in cpu
    assert pins == [line for line in plain if line.startswith("torch")]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the sdist from the tracked files, and the wheel from it; return both names of files."""
    checkout = tmp_path_factory.mktemp("build") / "checkout"
    for name in tracked():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, checkout / name, follow_symlinks=False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("A2_PROJECT_URL", f"{URL}/")
        output(sys.executable, "-m", "build", "--no-isolation", "--outdir", "..", ".", cwd=checkout)
    [wheel], [sdist] = (checkout.parent.glob(f"*.{suffix}") for suffix in ("whl", "tar.gz"))
    with zipfile.ZipFile(wheel) as archive, tarfile.open(sdist) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
        return {name: archive.read(name) for name in archive.namelist()}, names


@pytest.mark.slow
def test_a_wheel_contains_exactly_the_files_of_the_folders(built):
    packed = {name for name in built[0] if ".dist-info/" not in name}
    assert packed == {*tracked("a2cap"), *(f"a2cap/{name}" for name in tracked(*PACKED))}


@pytest.mark.slow
def test_a_wheel_states_the_licences_of_its_files(built):
    """A package `a2` of another project stays untouched; nothing compiled of others is inside."""
    wheel = built[0]
    info = next(name for name in wheel if name.endswith(".dist-info/METADATA")).rpartition("/")[0]
    assert {name.split("/")[0] for name in wheel} == {"a2cap", info}
    metadata = wheel[f"{info}/METADATA"].decode()
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "Author" not in metadata
    assert wheel[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert [name for name in wheel if f"{info}/licenses/" in name] == [f"{info}/licenses/LICENSE"]
    assert not [name for name in wheel if name.endswith((".jar", ".class", ".java"))]


@pytest.mark.slow
def test_a_release_has_the_urls_of_the_project_and_no_relative_link(built):
    [metadata] = (text.decode() for name, text in built[0].items() if name.endswith("/METADATA"))
    for name, page in (("Homepage", ""), ("Changelog", "/blob/HEAD/CHANGELOG.md")):
        assert f"Project-URL: {name}, {URL}{page}\n" in metadata
    assert "Description-Content-Type: text/markdown\n" in metadata
    links = re.findall(r"\]\(([^)]*)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    absolutes = re.findall(r"\]\(([^)]*)\)", metadata)
    for link, absolute in zip(links, absolutes, strict=True):
        view = "raw" if link.endswith((".png", ".jpg")) else "blob"
        assert absolute == (link if link.startswith("https:") else f"{URL}/{view}/HEAD/{link}")


@pytest.mark.slow
def test_an_sdist_contains_docs_and_tests(built):
    assert set(tracked("docs", "tests", "benchmarks", "configs", "Makefile")) <= built[1]
