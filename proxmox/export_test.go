package proxmox

import "github.com/nstance-go/nstance"

// An ErrorRow is a row of the table of errors.
type ErrorRow struct {
	Status  int
	Text    string
	Code    nstance.Code
	Meaning string
}

// ErrorRows returns the table of errors.
func ErrorRows() []ErrorRow {
	var out []ErrorRow
	for _, r := range rules {
		out = append(out, ErrorRow{r.status, r.text, r.code, r.meaning})
	}
	return out
}

// Notes returns what a machine's marks look like in its notes, for fuzzing.
func Notes(s string) bool {
	_, ok := parseNotes(s)
	return ok
}

// Tags does the same for its tags.
func Tags(s string) bool {
	_, ok := parseTags(s)
	return ok
}
