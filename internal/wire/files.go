package wire

import (
	"encoding/json"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/filelimit"
)

// FileStatuses returns the wire form of the files of a machine.
func FileStatuses(in []nstance.FileStatus) []*apiv1.FileStatus {
	out := make([]*apiv1.FileStatus, 0, len(in))
	for _, f := range in {
		out = append(out, &apiv1.FileStatus{Path: valid(f.Path), Digest: valid(f.Digest), Error: valid(f.Error)})
	}
	return out
}

// FileStatusesOf returns the domain form of the files of a machine, as many as a
// set may have.
func FileStatusesOf(in []*apiv1.FileStatus) []nstance.FileStatus {
	if len(in) == 0 {
		return nil
	}
	out := make([]nstance.FileStatus, 0, min(len(in), filelimit.Files))
	for _, f := range in[:min(len(in), filelimit.Files)] {
		out = append(out, nstance.FileStatus{Path: Text(f.GetPath()), Digest: Text(f.GetDigest()), Error: Text(f.GetError())})
	}
	return out
}

// Command returns the wire form of a command: a JSON array, or "" for none.
func Command(argv []string) string {
	if len(argv) == 0 {
		return ""
	}
	b, err := json.Marshal(argv)
	if err != nil {
		return "" // unreachable: strings always encode
	}
	return string(b)
}

// CommandOf returns a command, nil for "". It fails with Invalid for anything
// but a JSON array of strings of which the first is not empty.
func CommandOf(s string) ([]string, error) {
	if s == "" {
		return nil, nil
	}
	var argv []string
	if err := json.Unmarshal([]byte(s), &argv); err != nil || len(argv) == 0 || argv[0] == "" {
		return nil, nstance.FieldError("post_apply", "send a JSON array of strings", "is no command")
	}
	return argv, nil
}
