module github.com/heddle-dev/heddle/tools/dashboards

go 1.26.0

// Of the tests alone: Grafana's own types of a dashboard.
require github.com/grafana/grafana-foundation-sdk/go v0.0.18
