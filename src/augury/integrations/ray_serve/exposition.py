"""The metrics of all replicas as one exposition, every series with the label ``replica``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry


def merged(texts: Mapping[str, str]) -> bytes:
    """One text of several.

    Args:
        texts: of each replica, in Prometheus' format 0.0.4.
    """
    families: dict[str, Metric] = {}
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text):
            whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            whole.samples += [one._replace(labels={**one.labels, "replica": replica}) for one in family.samples]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_All(families.values()))
    return generate_latest(registry)


class _All(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
