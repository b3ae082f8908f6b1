package qemu

// StartFailures are the texts that classify messages of QEMU.
func StartFailures() (texts []string) {
	for _, f := range startFailures {
		texts = append(texts, f.text)
	}
	return texts
}

// StartCause is why a machine could not start.
var StartCause = startCause
