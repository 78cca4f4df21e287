"""Dashboard, alerts and scrape configuration: every metric they name is one that the planner has."""

import json
import re
from typing import Any

import pytest
import yaml

from infinipipe_planner.metrics import PlannerMetrics
from support_deploy import DEPLOY, load_manifests, walk

MONITORING = DEPLOY / "monitoring"
METRIC = re.compile(r"\b(?:infinipipe|process)_\w+")


def known_names() -> set[str]:
    """Names of all series that the planner shows."""
    names = set()
    for family in PlannerMetrics().registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names |= {family.name + suffix for suffix in suffixes}
    return names


def expressions() -> list[str]:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    alerts = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    return [part["expr"] for part in (*walk(dashboard), *walk(alerts)) if "expr" in part]


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_names_metrics_that_the_planner_has(expression: str) -> None:
    used = set(METRIC.findall(expression))
    assert used <= known_names()
    assert used or expression.startswith("up{")
    assert expression.count("(") == expression.count(")")
    assert expression.count("{") == expression.count("}")


def test_labels_in_expressions_are_those_of_the_metrics() -> None:
    labels = {"instance", "job", "le", "owner", "job_name", "method", "code", "outcome", "reason"}
    for expression in expressions():
        for group in re.findall(r"by \(([^)]*)\)", expression):
            assert {name.strip() for name in group.split(",")} <= labels, expression


def test_every_metric_of_the_planner_is_on_the_dashboard() -> None:
    shown = {name for expression in expressions() for name in METRIC.findall(expression)}
    for family in PlannerMetrics().registry.collect():
        if family.name.startswith("infinipipe_"):
            assert any(name.startswith(family.name) for name in shown), family.name


def test_alerts_say_what_is_wrong_and_how_bad_it_is() -> None:
    (group,) = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(names) == len(set(names))
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]


def test_panels_of_the_dashboard_do_not_overlap_and_name_their_unit() -> None:
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        mine = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not mine & cells
        cells |= mine
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_the_scrape_job_is_the_one_that_the_alerts_ask_for() -> None:
    scrape: Any = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    alerts = (MONITORING / "alerts.yml").read_text()
    assert f'up{{job="{scrape["scrape_configs"][0]["job_name"]}"}}' in alerts
    assert all((MONITORING / name).exists() for name in scrape["rule_files"])


def test_the_service_monitor_reads_the_metrics_port_of_the_planners_service() -> None:
    monitor = yaml.safe_load((MONITORING / "service-monitor.yaml").read_text())
    (service,) = [entry for entry in load_manifests("kubernetes/base") if entry["kind"] == "Service"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ports = {port["name"] for port in service["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
