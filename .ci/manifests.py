"""Judge Kubernetes manifests, given on stdin as `kubectl kustomize` prints them.

Every resource is held against the schema of its kind: those of Kubernetes with `kubernetes-validate`, those of the Prometheus
operator with its own models. A resource of which no schema is known is an error, not a warning. Ends with 1 at the first fault.
"""

from __future__ import annotations

import sys
from typing import Any

import kubernetes_validate
import yaml
from cloudcoil.models.prometheus_operator import v1 as operator

KUBERNETES = "1.37"


def check_operator(resource: dict[str, Any]) -> None:
    """Judge a resource of the Prometheus operator, whose models take unknown fields without a word."""
    model = getattr(operator, resource["kind"])
    kept = model.model_validate(resource).model_dump(mode="json", by_alias=True, exclude_unset=True)
    if kept != resource:
        raise SystemExit(f"{resource['kind']} {resource['metadata']['name']}: unknown fields, kept is only {kept}")


def main() -> None:
    """Judge all of stdin."""
    resources = [resource for resource in yaml.safe_load_all(sys.stdin) if resource is not None]
    if not resources:
        raise SystemExit("no resource")
    for resource in resources:
        if resource["apiVersion"].startswith("monitoring.coreos.com/"):
            check_operator(resource)
        else:
            kubernetes_validate.validate(resource, KUBERNETES, strict=True)
        print(f"{resource['kind']} {resource['metadata']['name']}: right")


if __name__ == "__main__":
    main()
