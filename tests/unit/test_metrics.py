"""Metrics: one prefix, and labels from bounded sets."""

from collections.abc import Iterator

import pytest
from prometheus_client.metrics import MetricWrapperBase

from memory_operator import metrics
from memory_operator.metrics import REGISTRY

BOUNDED = {"kind", "state", "result", "method", "code", "version"}


def everything() -> Iterator[tuple[str, MetricWrapperBase]]:
    for name, value in vars(metrics).items():
        if isinstance(value, MetricWrapperBase):
            yield name, value


@pytest.mark.parametrize(("name", "metric"), list(everything()), ids=str)
def test_labels_are_few_and_bounded(name: str, metric: MetricWrapperBase) -> None:
    assert set(metric._labelnames) <= BOUNDED, name


def test_all_are_of_one_family_and_explained() -> None:
    families = list(REGISTRY.collect())
    assert len(families) == len(list(everything()))
    for family in families:
        assert family.name.startswith("memory_operator_")
        assert family.documentation


def test_the_default_registry_with_its_metrics_of_python_is_left_alone() -> None:
    assert "python_info" not in {family.name for family in REGISTRY.collect()}
