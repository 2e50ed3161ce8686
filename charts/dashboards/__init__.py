"""Grafana dashboards of Trainmaster, as code; `python -m charts.dashboards` writes their JSON into the chart."""
