package agent

// SetNotify replaces the notifications to systemd, so that a test in fake time can
// receive them.
func SetNotify(a *Agent, send func(state string)) { a.notifySystemd = send }

// Slept is slept.
var Slept = slept
