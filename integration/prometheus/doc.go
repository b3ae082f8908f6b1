// Package prometheus tests the alerts and dashboards that deploy has, with Prometheus's own engine:
// on scenarios, and on what a real server and real controllers expose.
package prometheus
