"""The fleet that `bench web` makes up answers every page that is measured on it."""

from benchmarks import bench_web
from benchmarks.bench_web import OF_A_FLEET, made_up_fleet, pages


def test_every_page_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_web, "ROUNDS", 1)
    monkeypatch.setattr(bench_web, "WARM_UP", 0)
    with made_up_fleet(tmp_path) as (url, pid):
        figures = pages(url, pid, OF_A_FLEET)  # raises at an answer other than 200
    assert {each.figure.rpartition(",")[0] for each in figures} == {*OF_A_FLEET}
