"""The dashboard asks for metrics and labels that exist."""

from __future__ import annotations

import json
import re

from prometheus_client.metrics import MetricWrapperBase
from tests.support.compose import ROOT

from dualpath.telemetry.metrics import Metrics
from dualpath.wire.types import NicUse, NodeStatus, PoolUse

HERE = ROOT / "compose" / "grafana"
DASHBOARD = HERE / "dashboards" / "dualpath.json"
STATUS = NodeStatus(
    pools=(PoolUse("pool", 1, 2),),
    nics=(NicUse("nic", "low", "tx", 1),),
    counters={"event": 1},
)
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
ADDED_BY_PROMETHEUS = {"instance", "le"}


def queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def known() -> dict[str, set[str]]:
    """Name of each series → its labels."""
    metrics = Metrics("prefill", "prefill-0")
    metrics.watch(lambda: STATUS)
    declared = {
        metric._name: set(metric._labelnames)
        for metric in vars(metrics).values()
        if isinstance(metric, MetricWrapperBase)
    }
    return {
        family.name + suffix: {
            *declared.get(family.name, ()),
            *(label for sample in family.samples for label in sample.labels),
        }
        for family in metrics.registry.collect()
        for suffix in SUFFIXES[family.type]
    }


def labels_of(query: str) -> set[str]:
    grouped = re.findall(r"by \(([^)]*)\)", query)
    chosen = re.findall(r"[{,]\s*(\w+)\s*=~?\"", query)
    return {name.strip() for names in grouped for name in names.split(",")} | set(chosen)


def test_every_metric_asked_for_exists_and_has_the_labels_asked_for() -> None:
    series = known()
    assert len(queries()) > 20
    for query in queries():
        asked = re.findall(r"\bdualpath_\w+", query)
        assert asked, query
        for name in asked:
            assert name in series, f"{name} in {query}"
            assert labels_of(query) <= series[name] | ADDED_BY_PROMETHEUS, query


def test_legends_name_labels_that_the_query_keeps() -> None:
    series = known()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            (name, *_) = re.findall(r"\bdualpath_\w+", query)
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            kept = labels_of(query) if "(" in query and " by " in query else series[name]
            assert shown <= kept | {"instance"}, target


def test_panels_ask_the_provisioned_source_and_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert (
        "uid: prometheus\n"
        in (HERE / "provisioning" / "datasources" / "prometheus.yml").read_text()
    )
    places: set[tuple[int, int]] = set()
    for panel in panels:
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "prometheus"}
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not places & cells, panel["title"]
        places |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
