"""JSON over HTTP to a program on this machine, over one connection."""

from __future__ import annotations

import http.client
import json
from typing import Any

TIMEOUT_S = 60.0


class Http:
    """A client of one port of the loopback interface."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def answers(self, path: str) -> bool:
        """Whether somebody is there and well."""
        try:
            self._connection.request("GET", path)
            response = self._connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return False
        return response.status == 200

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        """Post something, and return the answer."""
        self._connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = self._connection.getresponse()
        text = response.read()
        assert response.status < 300, f"{path}: {response.status} {text[:300]!r}"
        return json.loads(text)

    def close(self) -> None:
        self._connection.close()
