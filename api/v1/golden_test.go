package apiv1_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// The files hold messages as bytes on the wire and as what they mean. They are
// never written again: what a later version adds gets a file of its own.
var golden = []string{
	"testdata/v0.1.json", // a message of each kind with all fields, and one for each variant of each oneof
}

// make-golden writes what none of the files has a sample of.
var makeGolden = flag.String("make-golden", "", "write this file in testdata, which only its own version may")

// A sample is one message. Its name is that of the message and, where it stands
// for one variant of a oneof, of that.
type sample struct {
	Wire []byte          `json:"wire"`
	Says json.RawMessage `json:"says"`
}

func load(t *testing.T, path string) map[string]sample {
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var samples map[string]sample
	require.NoError(t, json.Unmarshal(data, &samples))
	return samples
}

// described returns the message of that name.
func described(t *testing.T, name string) protoreflect.MessageDescriptor {
	name, _, _ = strings.Cut(name, ".")
	desc, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("nstance.v1." + name))
	require.NoError(t, err, "a message that others send or read is gone")
	return desc.(protoreflect.MessageDescriptor)
}

func TestGoldenMessages(t *testing.T) {
	if *makeGolden != "" {
		writeGolden(t, *makeGolden)
	}
	for _, path := range golden {
		samples := load(t, path)
		require.NotEmpty(t, samples)
		for name, s := range samples {
			t.Run(path+"/"+name, func(t *testing.T) {
				desc := described(t, name)
				got, want := dynamicpb.NewMessage(desc), dynamicpb.NewMessage(desc)
				require.NoError(t, proto.Unmarshal(s.Wire, got))
				require.Empty(t, unknown(got), "fields of that version are not known any more")
				require.NoError(t, protojson.Unmarshal(s.Says, want))
				require.True(t, proto.Equal(want, got), "it means something else now:\nwas %s\nis  %s", protojson.Format(want), protojson.Format(got))
				again, err := proto.MarshalOptions{Deterministic: true}.Marshal(got)
				require.NoError(t, err)
				require.Equal(t, s.Wire, again, "and clients of that version read what is sent")
			})
		}
	}
}

// TestGoldenMessagesAreComplete checks that everything that clients may rely on
// occurs in a sample: each field, and so each variant of each oneof.
func TestGoldenMessagesAreComplete(t *testing.T) {
	data, err := os.ReadFile("../frozen.binpb")
	require.NoError(t, err)
	var set descriptorpb.FileDescriptorSet
	require.NoError(t, proto.Unmarshal(data, &set))
	seen := sampled(t)
	for _, file := range set.GetFile() {
		if file.GetPackage() != "nstance.v1" {
			continue
		}
		for _, m := range file.GetMessageType() {
			for _, f := range m.GetField() {
				require.Contains(t, seen, m.GetName()+"."+f.GetName(), "no sample has it: freeze it with -make-golden in a file of its own")
			}
		}
	}
}

// sampled names the fields that occur in a sample, anywhere, of a oneof all
// variants.
func sampled(t *testing.T) map[string]bool {
	seen := map[string]bool{}
	var note func(m protoreflect.Message)
	note = func(m protoreflect.Message) {
		m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			seen[string(m.Descriptor().Name())+"."+string(f.Name())] = true
			switch {
			case f.Message() == nil || f.IsMap():
			case f.IsList():
				for i := range v.List().Len() {
					note(v.List().Get(i).Message())
				}
			default:
				note(v.Message())
			}
			return true
		})
	}
	for _, path := range golden {
		if _, err := os.Stat(path); *makeGolden != "" && errors.Is(err, fs.ErrNotExist) {
			continue // it is about to be written
		}
		for name, s := range load(t, path) {
			m := dynamicpb.NewMessage(described(t, name))
			require.NoError(t, proto.Unmarshal(s.Wire, m))
			note(m)
		}
	}
	return seen
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

// writeGolden writes a sample for each message that has a field of which there
// is none, and for each such variant of a oneof.
func writeGolden(t *testing.T, name string) {
	seen, samples := sampled(t), map[string]sample{}
	for _, file := range []protoreflect.FileDescriptor{apiv1.File_api_v1_nstance_proto, apiv1.File_api_v1_peer_proto} {
		for i := range file.Messages().Len() {
			desc := file.Messages().Get(i)
			for j := range desc.Fields().Len() {
				switch f := desc.Fields().Get(j); {
				case seen[string(desc.Name())+"."+string(f.Name())]:
				case f.ContainingOneof() != nil && !f.ContainingOneof().IsSynthetic():
					samples[string(desc.Name())+"."+string(f.Name())] = sampleOf(t, desc, f)
				default:
					samples[string(desc.Name())] = sampleOf(t, desc, nil)
				}
			}
		}
	}
	data, err := json.MarshalIndent(samples, "", " ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("testdata/"+name, append(data, '\n'), 0o644))
}

// sampleOf returns a message with all its fields; variant, unless it is nil, is
// the one that its oneof has.
func sampleOf(t *testing.T, desc protoreflect.MessageDescriptor, variant protoreflect.FieldDescriptor) sample {
	m := dynamicpb.NewMessage(desc)
	fill(m, 0)
	switch {
	case variant == nil:
	case variant.Message() != nil:
		fill(m.Mutable(variant).Message(), 1)
	default:
		m.Set(variant, scalar(variant))
	}
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	says, err := protojson.Marshal(m)
	require.NoError(t, err)
	var plain bytes.Buffer
	require.NoError(t, json.Compact(&plain, says)) // protojson varies its spaces on purpose
	return sample{wire, plain.Bytes()}
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
