package qemu

// StartFailures are the texts by which messages of QEMU are told apart.
func StartFailures() (texts []string) {
	for _, f := range startFailures {
		texts = append(texts, f.text)
	}
	return texts
}
