"""The captioner of docs/guide/adding-a-captioner.md, as a module outside a2."""

import re
import sys
from importlib import import_module
from pathlib import Path

GUIDE = Path(__file__).parents[1] / "docs" / "guide" / "adding-a-captioner.md"
[EXAMPLE] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
MODULE = "my_captioner"
KIND = f"{MODULE}:DotCaptioner"


def write_example(folder, monkeypatch):
    """Write the example where it can be imported, and forget it after the test."""
    file = folder / f"{MODULE}.py"
    file.write_text(EXAMPLE)
    monkeypatch.syspath_prepend(folder)
    forget(monkeypatch)
    return file


def forget(monkeypatch, *modules):
    """Make later imports of modules, by default the example, read their files again.

    After the test they are forgotten too: its folder is removed.
    """
    for module in modules or (MODULE,):
        monkeypatch.setitem(sys.modules, module, None)
        del sys.modules[module]


def import_example(folder, monkeypatch):
    """Return the example as a module."""
    write_example(folder, monkeypatch)
    return import_module(MODULE)
