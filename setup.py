"""Metadata of a release: A2_PROJECT_URL gives the project's URLs and makes README's links absolute.

Without it, README is the long description as it is. Folder X with its packages is a2cap.X, which
pyproject.toml could only list. All other metadata are there.
"""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

url = os.environ.get("A2_PROJECT_URL", "").rstrip("/")
readme = Path("README.md").read_text(encoding="utf-8")
files, urls = f"{url}/blob/HEAD", {}
if url:
    readme = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{url}/raw/HEAD/", readme)
    readme = re.sub(r"(\[[^]]*\]\()(?!https?:)", rf"\1{files}/", readme)
    urls = {
        "Homepage": url,
        "Documentation": f"{files}/docs/guide/README.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }
folders = ("configs", "data", "extract", "model", "pipeline")
inside = find_packages(include=[name for folder in folders for name in (folder, f"{folder}.*")])
setup(
    packages=["a2cap", *(f"a2cap.{name}" for name in inside)],
    long_description=readme,
    long_description_content_type="text/markdown",
    project_urls=urls,
)
