package gcp

import "github.com/nstance-go/nstance"

// A Row is one rule of the error table, for tests.
type Row struct {
	Seen, Text, Note string
	Code             nstance.Code
}

// Rows returns the error table.
func Rows() []Row {
	var out []Row
	for _, r := range rules {
		out = append(out, Row{r.seen, r.text, r.note, r.code})
	}
	return out
}
