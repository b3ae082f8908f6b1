package reconcile

// withMessage returns message after a colon, or nothing.
func withMessage(message string) string {
	if message == "" {
		return ""
	}
	return ": " + message
}

func oneIf(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
