package apiv1_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// The file holds one message of each kind with all fields that version 0.1 had,
// as bytes on the wire and as what they mean. It is never written again: what a
// later version adds gets a file of its own.
const golden = "testdata/v0.1.json"

var makeGolden = flag.Bool("make-golden", false, "write "+golden+", which only its own version may")

// A sample is one message.
type sample struct {
	Wire []byte          `json:"wire"`
	Says json.RawMessage `json:"says"`
}

func TestGoldenMessages(t *testing.T) {
	if *makeGolden {
		writeGolden(t)
	}
	data, err := os.ReadFile(golden)
	require.NoError(t, err)
	var samples map[string]sample
	require.NoError(t, json.Unmarshal(data, &samples))
	require.Greater(t, len(samples), 80)
	messages := apiv1.File_api_v1_nstance_proto.Messages()
	for name, s := range samples {
		t.Run(name, func(t *testing.T) {
			desc := messages.ByName(protoreflect.Name(name))
			require.NotNil(t, desc, "a message that clients of version 0.1 send or read is gone")
			got, want := dynamicpb.NewMessage(desc), dynamicpb.NewMessage(desc)
			require.NoError(t, proto.Unmarshal(s.Wire, got))
			require.Empty(t, unknown(got), "fields of version 0.1 are not known any more")
			require.NoError(t, protojson.Unmarshal(s.Says, want))
			require.True(t, proto.Equal(want, got), "it means something else now:\nwas %s\nis  %s", protojson.Format(want), protojson.Format(got))
			again, err := proto.MarshalOptions{Deterministic: true}.Marshal(got)
			require.NoError(t, err)
			require.Equal(t, s.Wire, again, "and clients of version 0.1 read what is sent")
		})
	}
}

// unknown lists the messages within m that have fields which it does not know.
func unknown(m protoreflect.Message) (in []string) {
	if len(m.GetUnknown()) > 0 {
		in = append(in, string(m.Descriptor().FullName()))
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				in = append(in, unknown(v.List().Get(i).Message())...)
			}
		default:
			in = append(in, unknown(v.Message())...)
		}
		return true
	})
	return in
}

func writeGolden(t *testing.T) {
	samples := map[string]sample{}
	for i := range apiv1.File_api_v1_nstance_proto.Messages().Len() {
		desc := apiv1.File_api_v1_nstance_proto.Messages().Get(i)
		m := dynamicpb.NewMessage(desc)
		fill(m, 0)
		wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		require.NoError(t, err)
		says, err := protojson.Marshal(m)
		require.NoError(t, err)
		var plain bytes.Buffer
		require.NoError(t, json.Compact(&plain, says)) // protojson varies its spaces on purpose
		samples[string(desc.Name())] = sample{wire, plain.Bytes()}
	}
	data, err := json.MarshalIndent(samples, "", " ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(golden, append(data, '\n'), 0o644))
}

// maxDepth bounds messages within messages.
const maxDepth = 4

// fill sets every field to something that tells it apart; of a oneof, the last.
func fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.Message() != nil && !f.IsMap() && depth >= maxDepth:
		case f.IsMap():
			value := protoreflect.ValueOfString("value")
			if f.MapValue().Kind() == protoreflect.BytesKind {
				value = protoreflect.ValueOfBytes([]byte("value"))
			} else if f.MapValue().Kind() != protoreflect.StringKind {
				continue
			}
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("key").MapKey(), value)
		case f.IsList() && f.Message() != nil:
			fill(m.Mutable(f).List().AppendMutable().Message(), depth+1)
		case f.IsList():
			m.Mutable(f).List().Append(scalar(f))
		case f.Message() != nil:
			fill(m.Mutable(f).Message(), depth+1)
		default:
			m.Set(f, scalar(f))
		}
	}
}

func scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	n := int64(f.Number())
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(n)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n) + 0.5)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(f.Name()))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(string(f.Name()))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	}
	panic(fmt.Sprintf("fields of kind %s have no sample yet", f.Kind()))
}
