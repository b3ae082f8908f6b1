package agent

// SetNotify replaces the way to systemd, so that a test in fake time can listen.
func SetNotify(a *Agent, say func(state string)) { a.notify = say }
