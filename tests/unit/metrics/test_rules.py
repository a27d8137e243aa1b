"""Alerts, recording rules and dashboards: Prometheus's own checks, and only metrics that the farm exports."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from farm.metrics.catalogue import METRICS
from farm.results.formats import METRIC_NAMES
from tests.support.needs import needs

ROOT = Path(__file__).parents[3]
PROMETHEUS, GRAFANA = ROOT / "prometheus", ROOT / "grafana"
DASHBOARDS = sorted(GRAFANA.glob("*.json"))
RUNBOOK = ROOT / "docs" / "alerts.md"
EXPORTED = {series for metric in METRICS.values() for series in metric.series}
OF_RESULTS = set(METRIC_NAMES)
OF_THE_CLIENT = {
    "process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds", "up",
}  # fmt: skip

needs_promtool = needs("promtool")


def promtool(*arguments: str, folder: Path) -> str:
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def rules(file: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load((PROMETHEUS / file).read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return rules("alerts.yml")


def expressions(board: Path) -> list[str]:
    return [target["expr"] for panel in json.loads(board.read_text())["panels"] for target in panel["targets"]]


def used(expression: str) -> set[str]:
    """Names of metrics in an expression; words in braces and quotes are labels."""
    bare = re.sub(r"\{[^}]*\}|\"[^\"]*\"|\b(?:by|on|without|ignoring)\s*\([^)]*\)", " ", expression)
    return set(re.findall(r"\b(?:farm[_:][a-z0-9_:]+|process_[a-z_]+|up)\b", bare))


@needs_promtool
def test_promtool_finds_no_fault_in_configuration_and_rules() -> None:
    said = promtool("check", "config", "prometheus.yml", folder=PROMETHEUS)
    assert f"{len(alerts())} rules found" in said
    promtool("check", "rules", "--lint=all", "--lint-fatal", "recording.yml", "alerts.yml", folder=PROMETHEUS)


@needs_promtool
@pytest.mark.parametrize("file", sorted((PROMETHEUS / "tests").glob("*.yml")), ids=lambda file: file.stem)
def test_alerts_fire_for_what_they_are_about_and_for_nothing_else(file: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", file.name, folder=file.parent)


def test_every_alert_has_a_test_in_which_it_fires() -> None:
    tested = "".join(file.read_text() for file in (PROMETHEUS / "tests").glob("*.yml"))
    assert [alert["alert"] for alert in alerts() if f'alertname="{alert["alert"]}"' not in tested] == []


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_says_what_why_and_where_to_read(alert: dict[str, Any]) -> None:
    said = alert["annotations"]
    assert set(said) == {"summary", "description", "runbook_url"}
    of_lab = "by (job) (" in alert["expr"]  # every host of a lab reports it
    assert ("{{ $labels.job }}" if of_lab else "{{ $labels.instance }}") in said["description"]
    page, _, anchor = said["runbook_url"].partition("#")
    assert ROOT / page == RUNBOOK
    sections = {title.lower() for title in re.findall(r"^### (\S+)$", RUNBOOK.read_text(), re.MULTILINE)}
    assert anchor in sections
    assert alert["labels"]["severity"] in ("critical", "warning")


def test_no_runbook_section_is_left_of_an_alert_that_is_gone() -> None:
    sections = re.findall(r"^### (Farm\S+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(alert["alert"] for alert in alerts())


def test_sections_stand_under_their_severity() -> None:
    pages, warnings = RUNBOOK.read_text().split("## Alerts that wait until a person looks")
    for alert in alerts():
        text = pages if alert["labels"]["severity"] == "critical" else warnings
        assert f"### {alert['alert']}\n" in text


def test_rules_use_only_what_is_exported_or_recorded() -> None:
    recorded = {rule["record"] for rule in rules("recording.yml")}
    everything = [rule["expr"] for rule in (*rules("recording.yml"), *alerts())]
    unknown = {name for expression in everything for name in used(expression)} - EXPORTED - OF_THE_CLIENT - recorded
    assert unknown == set()


def test_a_name_that_nobody_exports_would_be_found() -> None:
    assert used('sum by (state) (farm_nonsense_total{state="farm_x"}) > farm:recorded:ratio') == {
        "farm_nonsense_total",
        "farm:recorded:ratio",
    }


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.stem)
def test_dashboards_use_only_what_is_exported_or_recorded(board: Path) -> None:
    recorded = {rule["record"] for rule in rules("recording.yml")}
    names = {name for expression in expressions(board) for name in used(expression)}
    assert names
    assert names - EXPORTED - OF_THE_CLIENT - OF_RESULTS - recorded == set()


def test_every_metric_is_on_a_dashboard_in_an_alert_or_recorded() -> None:
    """What nobody looks at need not be exported."""
    shown = {name for board in DASHBOARDS for expression in expressions(board) for name in used(expression)}
    shown |= {name for rule in (*rules("recording.yml"), *alerts()) for name in used(rule["expr"])}
    unseen = {name for name, metric in METRICS.items() if not shown & set(metric.series)}
    # Counters whose story a gauge or another counter tells on the same panels.
    assert unseen == UNSEEN


UNSEEN = {
    "farm_daemon_epoch", "farm_clock_jumps", "farm_store_outages", "farm_devices_unadopted", "farm_quarantines",
    "farm_recovery_duration_seconds", "farm_toolchain_starts",
}  # fmt: skip


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.stem)
def test_a_dashboard_is_whole(board: Path) -> None:
    page = json.loads(board.read_text())
    assert page["uid"] == f"farm-{board.stem}"
    ids = [panel["id"] for panel in page["panels"]]
    assert len(set(ids)) == len(ids)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in page["panels"]]
    assert len(set(places)) == len(places)
    assert all(x + panel["gridPos"]["w"] <= 24 for (x, _), panel in zip(places, page["panels"], strict=True))
    for panel in page["panels"]:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(set(references)) == len(references)
    variables = {variable["name"] for variable in page["templating"]["list"]}
    wanted = {"datasource"} | set(re.findall(r"\$(job|instance|device|model)\b", json.dumps(page["panels"])))
    assert wanted <= variables
    assert ("device" in variables) == (board.stem in ("device", "results"))


def test_dashboards_have_different_ids() -> None:
    assert [board.stem for board in DASHBOARDS] == ["daemon", "device", "fleet", "jobs", "results"]
    assert len({json.loads(board.read_text())["title"] for board in DASHBOARDS}) == len(DASHBOARDS)


@needs_promtool
@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.stem)
def test_prometheus_can_read_every_expression(board: Path, tmp_path: Path) -> None:
    """As rules of a file, with Grafana's interval put in: promtool parses each."""
    named = [
        {"record": f"x:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(expressions(board))
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": named}]}))
    assert f"{len(named)} rules found" in promtool("check", "rules", "--lint=none", "rules.yml", folder=tmp_path)


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.stem)
def test_dashboards_are_current(board: Path) -> None:
    assert generator().text(board.stem) == board.read_text(), "python grafana/generate.py"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("grafana_generate", GRAFANA / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module
