package agent

// SetNotify replaces the way to systemd, so that a test in fake time can listen.
func SetNotify(a *Agent, send func(state string)) { a.notifySystemd = send }
