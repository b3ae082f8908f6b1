// Package integration is the module of what needs more than one technology: crash
// enumeration and faults through the real clients of clouds, stores against real servers,
// and whole programs end to end. No other module imports it.
package integration
