// Package prometheus tests the alerts that deploy has, with Prometheus's own engine.
package prometheus
