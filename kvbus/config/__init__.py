"""Frozen options per role, each with its unit, default and reason, and the relations between them.

A configuration is built from text (a file, the environment, flags), checked once with `validate()`, which finds every problem at
once, and never changes after that. Numbers that bound something say what happens at the bound. The room opens no file and reads
no environment: what is in them is given to it.
"""

from kvbus.config.broker import BrokerConfig
from kvbus.config.discovery import DiscoveryConfig, parse_discovery
from kvbus.config.groups import DeparturePolicy, GroupConfig, GroupPolicy, LossPolicy
from kvbus.config.workers import IngestConfig, WorkerConfig, parse_worker
from kvbus.views.config import ViewConfig

__all__ = [
    "BrokerConfig",
    "DeparturePolicy",
    "DiscoveryConfig",
    "GroupConfig",
    "GroupPolicy",
    "IngestConfig",
    "LossPolicy",
    "ViewConfig",
    "WorkerConfig",
    "parse_discovery",
    "parse_worker",
]
