// Package spot has detectors read metadata services that others wrote.
package spot
