package operators

import (
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/registration"
)

var update = flag.Bool("update", false, "write the golden files anew: read every line that changes")

// A filler gives every field a value of its own: a text its path, a number and a time what follows
// from the path, so that another field changes no other value.
type filler struct {
	bools []string // paths of those there are
	only  string   // path of the only bool that is true; empty: none is
}

func numberOf(path string) int64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(path))
	return int64(h.Sum32()%9_999_991) + 1
}

func (f *filler) fill(v reflect.Value, path string) {
	n := numberOf(path)
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(n, 0).UTC()))
		return
	case time.Duration:
		v.SetInt(n * int64(time.Second))
		return
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})))
		return
	case json.RawMessage:
		v.SetBytes(fmt.Appendf(nil, `{"n":%d}`, n))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(path)
	case reflect.Bool:
		f.bools = append(f.bools, path)
		v.SetBool(path == f.only)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(n)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(n % 256))
	case reflect.Float64:
		v.SetFloat(float64(n) / 4)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), path)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		f.fill(v.Index(0), path+"[0]")
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		f.fill(key, path+" key")
		f.fill(value, path+" value")
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				f.fill(v.Field(i), path+"."+v.Type().Field(i).Name)
			}
		}
	}
}

// lines returns the fields of a message that are set, each as a path and its value.
func lines(m protoreflect.Message, path string) (out []string) {
	add := func(path string, f protoreflect.FieldDescriptor, v protoreflect.Value) {
		if f.Kind() == protoreflect.MessageKind {
			out = append(out, lines(v.Message(), path)...)
		} else {
			out = append(out, fmt.Sprintf("%s = %v", path, v.Interface()))
		}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		path := path + "." + string(f.Name())
		switch {
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				add(path+"["+k.String()+"]", f.MapValue(), v)
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				add(fmt.Sprintf("%s[%d]", path, i), f, v.List().Get(i))
			}
		default:
			add(path, f, v)
		}
		return true
	})
	slices.Sort(out)
	return out
}

// shown returns what a conversion makes of a value with every field, and what each bool adds.
func shown[T any](name string, convert func(T) proto.Message) (out []string) {
	convertFilled := func(only string) ([]string, filler) {
		var v T
		f := filler{only: only}
		f.fill(reflect.ValueOf(&v).Elem(), "")
		return lines(convert(v).ProtoReflect(), name), f
	}
	plain, f := convertFilled("")
	out = append(out, plain...)
	for _, path := range f.bools {
		with, _ := convertFilled(path)
		for _, line := range with {
			if !slices.Contains(plain, line) {
				out = append(out, "with "+path+": "+line)
			}
		}
		for _, line := range plain {
			if !slices.Contains(with, line) {
				out = append(out, "with "+path+", not: "+line)
			}
		}
	}
	return out
}

// TestMessages: what operators see of a group, an instance, a life, an interruption and the rest
// has each field in its place.
func TestMessages(t *testing.T) {
	const golden = "testdata/messages.txt"
	got := strings.Join(slices.Concat(
		shown("group", func(v reconcile.GroupView) proto.Message { return groupMessage(v) }),
		shown("instance", func(v reconcile.InstanceView) proto.Message { return instanceMessage(v) }),
		shown("life", func(v ledger.Life) proto.Message {
			k := newLinks()
			return k.lifeMessage(&v)
		}),
		shown("interruption", func(v ledger.Interruption) proto.Message { return interruptionMessage(&v) }),
		shown("rate", func(v ledger.Rate) proto.Message { return rateMessage(&v, time.Hour) }),
		shown("action", func(v ledger.Action) proto.Message { return actionMessage(&v) }),
		shown("acknowledgement", func(v attention.Acknowledgement) proto.Message { return acknowledgementMessage(v) }),
		shown("operator", func(v registration.OperatorRegistration) proto.Message { return operatorMessage(v) }),
		shown("orphan", func(v reconcile.OrphanView) proto.Message { return orphanMessage(v) }),
		shown("avoided", func(v reconcile.AvoidedPool) proto.Message { return avoidedMessage(v) }),
		shown("ended", func(v ledger.Life) proto.Message {
			k := newLinks()
			return endedInstance(k.lifeMessage(&v))
		}),
		[]string{"of nothing:"},
		lines(groupMessage(reconcile.GroupView{}).ProtoReflect(), "group"),
		lines(instanceMessage(reconcile.InstanceView{}).ProtoReflect(), "instance"),
		lines(rateMessage(&ledger.Rate{}, time.Hour).ProtoReflect(), "rate"),
	), "\n") + "\n"
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}
