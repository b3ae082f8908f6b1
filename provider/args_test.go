package provider_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

type disk struct {
	Size int `json:"size" doc:"gigabytes" min:"1"`
}

type args struct {
	Disk   disk              `json:"disk" doc:"the first disk"`
	Disks  []disk            `json:"disks" doc:"further disks"`
	Tags   map[string]string `json:"tags" doc:"further tags"`
	Boot   provider.Duration `json:"boot" doc:"how long it takes to start" default:"0s"`
	Hidden string            `json:"-"`
}

func TestDecodeArgs(t *testing.T) {
	t.Run("absent ones keep the defaults", func(t *testing.T) {
		a := args{Boot: provider.Duration(time.Hour)}
		require.NoError(t, provider.DecodeArgs(nil, &a))
		require.EqualValues(t, time.Hour, a.Boot)
	})
	t.Run("good ones are decoded", func(t *testing.T) {
		var a args
		require.NoError(t, provider.DecodeArgs(json.RawMessage(`{"disk": {"size": 3}, "boot": "1m30s"}`), &a))
		require.Equal(t, 3, a.Disk.Size)
		require.EqualValues(t, 90*time.Second, a.Boot)
	})
	for name, tc := range map[string]struct{ args, field, says string }{
		"an unknown one":         {`{"boot": "1s", "spto": 1}`, "args.spto", "valid here: boot, disk, disks, tags"},
		"an unknown inner one":   {`{"disk": {"sizee": 1}}`, "args.disk.sizee", `did you mean "size"?`},
		"one in a list":          {`{"disks": [{"size": 1}, {"sise": 2}]}`, "args.disks[1].sise", "no such argument"},
		"one in a map":           {`{"tags": {"a": "x", "b": 2}}`, "args.tags.b", "number"},
		"one of the system's":    {`{"image_id": "x"}`, "args.image_id", "use image of the template"},
		"a hidden one":           {`{"Hidden": "x"}`, "args.Hidden", "no such argument"},
		"a wrong type":           {`{"disk": {"size": "big"}}`, "args.disk.size", "string"},
		"a bad duration":         {`{"boot": "soon"}`, "args.boot", "soon"},
		"a negative duration":    {`{"boot": "-1s"}`, "args.boot", "-1s"},
		"a duration as a number": {`{"boot": 5}`, "args.boot", "number"},
		"a list":                 {`[]`, "args", "not a JSON object"},
		"null":                   {`null`, "args", "not a JSON object"},
		"no JSON":                {`{`, "args", "not a JSON object"},
		"two objects":            {`{} {}`, "args", "not a JSON object"},
	} {
		t.Run(name+" is refused by name", func(t *testing.T) {
			err := provider.DecodeArgs(json.RawMessage(tc.args), &args{}, provider.Managed{"image_id": "use image of the template"})
			e, ok := errors.AsType[*nstance.Error](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, nstance.Invalid, e.Code)
			require.Equal(t, tc.field, e.Field)
			require.ErrorContains(t, err, tc.says)
		})
	}
}

func FuzzDecodeArgs(f *testing.F) {
	f.Add([]byte(`{"disk": {"size": 3}, "boot": "1s"}`))
	f.Add([]byte(`{"x": null, "": 1, "disk": []}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := provider.DecodeArgs(b, &args{}); err != nil {
			require.Equal(t, nstance.Invalid, nstance.CodeOf(err))
		}
	})
}

func TestFingerprint(t *testing.T) {
	base := spec(t)
	base.Args = json.RawMessage(`{"a": 1, "b": 12345678901234567890}`)
	t.Run("does not depend on the spelling of args or the zone of times", func(t *testing.T) {
		same := base
		same.Args = json.RawMessage(`{"b":12345678901234567890,"a":1}`)
		same.CreatedAt = base.CreatedAt.In(time.FixedZone("x", 3600))
		require.Equal(t, provider.Fingerprint(base), provider.Fingerprint(same))
	})
	for name, change := range map[string]func(*nstance.MachineSpec){
		"owner":     func(s *nstance.MachineSpec) { s.Owner.Tenant = "x" },
		"user data": func(s *nstance.MachineSpec) { s.UserData = []byte("x") },
		"args":      func(s *nstance.MachineSpec) { s.Args = json.RawMessage(`{"a": 1, "b": 12345678901234567891}`) },
		"bad args":  func(s *nstance.MachineSpec) { s.Args = json.RawMessage(`{`) },
		"market":    func(s *nstance.MachineSpec) { s.Market = nstance.Spot },
		"epoch":     func(s *nstance.MachineSpec) { s.Epoch++ },
		"time":      func(s *nstance.MachineSpec) { s.CreatedAt = s.CreatedAt.Add(time.Nanosecond) },
	} {
		t.Run("depends on "+name, func(t *testing.T) {
			other := base
			change(&other)
			require.NotEqual(t, provider.Fingerprint(base), provider.Fingerprint(other))
		})
	}
	t.Run("does not depend on the limit of a host, which a repeat may have another one of", func(t *testing.T) {
		other := base
		other.HostLimit = 3
		require.Equal(t, provider.Fingerprint(base), provider.Fingerprint(other))
	})
	t.Run("is the same in every version", func(t *testing.T) {
		golden := nstance.MachineSpec{ID: "tst06dx9xy919t3v9kzd2xdsyzb3g", CreatedAt: time.Unix(0, 0), Args: json.RawMessage(`{"a":1}`)}
		require.Equal(t, "b9df9c84c4da719377fc01d1d7afeb15ecfd4be4bd3ce0c80291108b00d8c8f0", provider.Fingerprint(golden))
	})
}
