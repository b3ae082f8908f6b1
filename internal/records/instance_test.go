package records_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
)

var update = flag.Bool("update", false, "write golden files anew")

// fullInstance has every field set.
func fullInstance() records.Instance {
	rec := newInstance(1)
	rec.Header = records.Header{Format: "1.0", Epoch: 7, WriteID: "W"}
	key := func(serial string) *records.KeyRecord {
		return &records.KeyRecord{
			Fingerprint: "sha256:" + serial, PublicKey: []byte{1, 2}, Serial: serial, Issuer: "ca1",
			NotBefore: born, NotAfter: born.Add(24 * time.Hour), Certificate: []byte{3, 4},
		}
	}
	rec.OnDemand, rec.Request, rec.Definition, rec.InfraHash, rec.RuntimeHash = true, "r1", "d1", "v1:sha256:aa", "v1:sha256:bb"
	rec.Image, rec.UserDataDigest, rec.BootstrapData, rec.NonceKeyID, rec.RegistrationTimeout = "ami-1", "u1", "b1", "n1", 5*time.Minute
	rec.Authorities, rec.LoadBalancers = []string{"a1", "a2"}, []string{"lb-1"}
	rec.Shape = records.Shape{InstanceType: "t3.small", Subnet: "s-1", Market: nstance.Spot, MaxPrice: "0.01"}
	rec.ShapeChoice, rec.PricePerHour = "capacity", 0.0312
	rec.AskedAt = born
	rec.FailedLaunch = &records.FailedLaunch{At: born, Cause: nstance.LossInvalid, Words: "w"}
	rec.Token, rec.ProviderID, rec.Zone, rec.Hostname, rec.RegisteredAt = "tok", "i-1", "z-1", "h<1>", born.Add(time.Minute)
	rec.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	rec.Current, rec.Pending = key("01"), key("02")
	rec.Notices = []nstance.Notice{{Kind: nstance.Reclaim, Action: "terminate", Deadline: born.Add(time.Hour), Source: "aws/spot", EventID: "e1", DetectedAt: born}}
	rec.Advice = []nstance.Notice{{Kind: nstance.Rebalance, Source: "aws/rebalance/eventbridge", EventID: "e2", DetectedAt: born}}
	cause := nstance.Cause{Kind: nstance.CauseNotice, EventID: "e1"}
	rec.Drain = &nstance.Drain{
		Instance: rec.ID, Group: rec.Key(), ProviderID: "i-1", Generation: 2, StartedAt: born, Deadline: born.Add(time.Hour),
		Causes: []nstance.Cause{cause}, Executor: nstance.ExecutorAgent,
	}
	rec.Replaces, rec.ReadyAt, rec.Drifted = newInstance(2).ID, born.Add(2*time.Minute), []string{"image"}
	rec.Cancelled = []records.PastDrain{{Drain: *rec.Drain, Notices: rec.Notices, EndedAt: born.Add(time.Minute)}}
	rec.End = &records.End{
		LaunchedAt: born, InstanceType: "t3.small", Zone: "z-1", Market: nstance.Spot, GoneAt: born, Loss: nstance.LossReclaimed,
		Drained: &records.DrainEnd{At: born, By: nstance.ExecutorAgent, Outcome: nstance.OutcomeDrained, Message: "m"},
	}
	rec.Standby = &records.Standby{Mode: nstance.ParkStopped, Phase: nstance.Waking, Since: born.Add(time.Hour), Serial: "01", PendingSerial: "02"}
	rec.Generation, rec.CutShort, rec.Reclaims = 2, true, 1
	rec.Deleting, rec.Preserve = &records.Deletion{At: born, Why: cause}, &records.Preserve{Until: born}
	rec.Rehearsal = &records.Rehearsal{Source: "rehearsal/eve", Until: born.Add(time.Minute)}
	return rec
}

// The golden file protects the stored form: reading gives the same values, and writing
// the same form.
func TestGoldenInstance(t *testing.T) {
	golden := filepath.Join("testdata", "instance.golden.json")
	want := fullInstance()
	mem := storage.NewMemory()
	_, err := records.New(mem, shard, &records.Options{Epoch: 7}).Create(t.Context(), want)
	require.NoError(t, err)
	obj, err := mem.Get(t.Context(), keyOf(want))
	require.NoError(t, err)
	var written bytes.Buffer
	require.NoError(t, json.Indent(&written, replaceWriteID(t, obj), "", "  "))
	if *update {
		require.NoError(t, os.WriteFile(golden, written.Bytes(), 0o644))
	}

	data, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(data), written.String())
	got, err := records.DecodeInstance(keyOf(want), data)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func replaceWriteID(t *testing.T, obj storage.Object) []byte {
	rec, err := records.DecodeInstance(obj.Key, obj.Data)
	require.NoError(t, err)
	return bytes.Replace(obj.Data, []byte(rec.WriteID), []byte("W"), 1)
}

// A field that is missing in fullInstance is missing in the golden file.
func TestFullInstanceHasEveryField(t *testing.T) {
	v := reflect.ValueOf(fullInstance())
	for i := range v.NumField() {
		require.False(t, v.Field(i).IsZero(), v.Type().Field(i).Name)
	}
}

func TestInstanceMethods(t *testing.T) {
	rec := newInstance(1)
	require.Equal(t, nstance.GroupKey{Tenant: "default", Group: "web"}, rec.Key())
	require.False(t, rec.Registered())
	rec.RegisteredAt = born
	require.True(t, rec.Registered())
}

// decoded is the JSON under a record's key, decoded into a map.
func (b recordsTest) decoded(t *testing.T, rec records.Instance) map[string]any {
	t.Helper()
	obj, err := b.mem.Get(context.Background(), keyOf(rec))
	require.NoError(t, err)
	var out map[string]any
	require.NoError(t, json.Unmarshal(obj.Data, &out))
	return out
}

func TestUnknownFields(t *testing.T) {
	t.Run("survive rewrites at the top level", func(t *testing.T) {
		rec := fullInstance()
		raw, err := json.Marshal(rec)
		require.NoError(t, err)
		raw = bytes.Replace(raw, []byte(`{"format":"1.0"`), []byte(`{"format":"1.3","park":{"mode":"stop","big":12345678901234567890}`), 1)
		b := newBed()
		b.put(t, keyOf(rec), string(raw))
		_, problems, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		require.Empty(t, problems)
		want := b.decoded(t, rec)
		for _, name := range []string{"one", "two"} {
			_, err := b.recs.Update(t.Context(), rec.ID, host(name))
			require.NoError(t, err)
		}
		got := b.decoded(t, rec)
		require.Equal(t, "two", got["hostname"])
		got["hostname"], got["write_id"] = want["hostname"], want["write_id"]
		require.Equal(t, want, got)
		obj, err := b.mem.Get(t.Context(), keyOf(rec))
		require.NoError(t, err)
		require.Contains(t, string(obj.Data), "12345678901234567890", "numbers keep every digit")
		require.Contains(t, string(obj.Data), `"format":"1.3"`, "the fields of 1.3 are still there")
	})
	t.Run("do not shadow known ones spelt in another case", func(t *testing.T) {
		b := newBed()
		rec := newInstance(1)
		b.put(t, keyOf(rec), `{"format":"1.0","ID":"`+string(rec.ID)+`","tenant":"default","group":"web","hoſtname":"old","x":1}`)
		_, _, err := b.recs.Load(t.Context())
		require.NoError(t, err)
		_, err = b.recs.Update(t.Context(), rec.ID, host("new"))
		require.NoError(t, err)
		require.Equal(t, "new", b.stored(t, rec).Hostname)
		require.Contains(t, b.decoded(t, rec), "x")
	})
	t.Run("cost nothing where there are none", func(t *testing.T) {
		b, rec := with(t)
		_, err := b.recs.Update(t.Context(), rec.ID, func(r *records.Instance) error { r.Addresses = nil; return nil })
		require.NoError(t, err)
		obj, err := b.mem.Get(t.Context(), keyOf(rec))
		require.NoError(t, err)
		require.True(t, bytes.HasPrefix(obj.Data, []byte(`{"format":`)), "fields stand in their own order")
	})
}

func FuzzInstance(f *testing.F) {
	golden, err := os.ReadFile(filepath.Join("testdata", "instance.golden.json"))
	require.NoError(f, err)
	f.Add(golden)
	f.Add([]byte(`{"format":"1.0"}`))
	f.Add([]byte(`{"format":"2.0","epoch":[]}`))
	f.Add([]byte(`null`))
	key := keyOf(newInstance(1))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := records.DecodeInstance(key, data)
		if err != nil {
			require.ErrorIs(t, err, nstance.Invalid)
			return
		}
		mem := storage.NewMemory()
		_, err = mem.PutIfAbsent(t.Context(), key, withField(t, data))
		require.NoError(t, err)
		recs := records.New(mem, shard, nil)
		_, problems, err := recs.Load(t.Context())
		require.NoError(t, err)
		require.Empty(t, problems)
		_, err = recs.Update(t.Context(), rec.ID, host(rec.Hostname+"x"))
		require.NoError(t, err)

		obj, err := mem.Get(t.Context(), key)
		require.NoError(t, err)
		again, err := records.DecodeInstance(key, obj.Data)
		require.NoError(t, err)
		again.Header, again.Hostname = rec.Header, rec.Hostname
		a, errA := json.Marshal(rec)
		b, errB := json.Marshal(again)
		require.NoError(t, errA)
		require.NoError(t, errB)
		require.Equal(t, string(a), string(b), "what is read is what is written")
		var fields map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(obj.Data, &fields))
		require.JSONEq(t, `{"kept":[1,"<"]}`, string(fields["zz_unknown"]))
	})
}

// withField adds an unknown field.
func withField(t *testing.T, data []byte) []byte {
	var fields map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data, &fields))
	fields["zz_unknown"] = json.RawMessage(`{"kept":[1,"<"]}`)
	out, err := json.Marshal(fields)
	require.NoError(t, err)
	return out
}
