"""`python -m kvbus_cli` is `kvbus`, also where the script is not on the path."""

from __future__ import annotations

from kvbus_cli.main import run

if __name__ == "__main__":
    run()
