"""What tests need and the checkout does not have: large sample data (wire vectors, request traces), and other people's programs.

The data lies in a folder named `shared` beside the checkout, or where `KVBUS_SHARED` says. A test that needs some of this asks
here and is skipped, with the reason, where it is absent; what is needed for good has been copied to `tests/golden/`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent


def vectors() -> Path:
    """Return the folder of wire vectors (`*.jsonl`), or skip the test or module that asks."""
    return _folder("vectors")


def traces() -> Path:
    """Return the folder of request traces (`*.jsonl.gz`), or skip the test or module that asks."""
    return _folder("traces")


def _folder(name: str) -> Path:
    said = os.environ.get("KVBUS_SHARED")
    folder = (Path(said) if said else CHECKOUT.parent / "shared") / name
    if folder.is_dir():
        return folder
    if said:
        pytest.fail(f"KVBUS_SHARED is set to {said}, which has no folder {name}/", pytrace=False)
    return pytest.skip(
        f"no sample data: {folder} is absent (KVBUS_SHARED names another place)", allow_module_level=True
    )


def program(name: str) -> str:
    """Return where a program of other people's is, or skip the test that asks.

    Args:
        name: Its name; `.ci/run` installs it.
    """
    path = shutil.which(name)
    return path if path is not None else pytest.skip(f"{name} is not installed")
