"""Metrics for Prometheus: the farm's activity, read from its state at each scrape (docs/alerts.md).

`catalogue` declares every metric once; docs/alerts.md, the alert rules and the dashboards are held to it. At a scrape
`FarmCollector.read` fills a `Page` from the daemon's memory (`Sources`, and what `ledger` counted from events), and
`exposition.rendered` has prometheus_client write it.
"""
