//go:build !linux

package lease

// systemClock may stand still while the machine is suspended. Servers run on
// Linux; elsewhere this is for development.
func systemClock() Clock { return GoClock() }
