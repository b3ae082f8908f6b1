package admin

import (
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// A document is a message of the API as it is printed: its JSON mapping, with
// the names of the .proto file.
type document struct{ proto.Message }

// MarshalJSON implements json.Marshaler.
func (d document) MarshalJSON() ([]byte, error) {
	return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(d.Message)
}

// documents returns messages as they are printed. An empty list is [], not null.
func documents[M proto.Message](list []M) []document {
	out := make([]document, 0, len(list))
	for _, m := range list {
		out = append(out, document{m})
	}
	return out
}

// A groupDocument is a group within what a command prints.
type groupDocument struct{ *apiv1.Group }

// MarshalJSON implements json.Marshaler.
func (d groupDocument) MarshalJSON() ([]byte, error) { return document{d.Group}.MarshalJSON() }

// A drainDocument is a drain within what a command prints.
type drainDocument struct{ *apiv1.Drain }

// MarshalJSON implements json.Marshaler.
func (d drainDocument) MarshalJSON() ([]byte, error) { return document{d.Drain}.MarshalJSON() }
