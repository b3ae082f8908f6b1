package confighash_test

import (
	"encoding/base64"
	"encoding/json"
	"testing"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/stretchr/testify/require"
)

// tracking is a definition with everything tracked.
func tracking() nstance.Definition {
	d := full()
	d.Track = []nstance.Tracked{"vars", "image", "userdata"}
	d.UserData = nstance.UserData{Source: "url", Content: "https://example/u", Fetched: []byte("{{.Vars.color}}")}
	return d
}

func TestTracked(t *testing.T) {
	with := func(track string, change func(*nstance.Definition)) confighash.Hash {
		d := tracking()
		d.Track = []nstance.Tracked{nstance.Tracked(track)}
		change(&d)
		return infraHash(t, d)
	}
	same := func(*nstance.Definition) {}
	for _, c := range []struct {
		name, track string
		change      func(*nstance.Definition)
		counts      bool
	}{
		{"another image, tracked", "image", func(d *nstance.Definition) { d.Image = "ami-2" }, true},
		{"another image, not tracked", "vars", func(d *nstance.Definition) { d.Image = "ami-2" }, false},
		{"other fetched bytes, tracked", "userdata", func(d *nstance.Definition) { d.UserData.Fetched = []byte("{{.Vars.color}}!") }, true},
		{"other fetched bytes, not tracked", "image", func(d *nstance.Definition) { d.UserData.Fetched = []byte("{{.Vars.color}}!") }, false},
		{"a variable that is named, tracked", "vars", func(d *nstance.Definition) { d.Vars = map[string]string{"color": "red", "region": "eu"} }, true},
		{"a variable that is not named, tracked", "vars", func(d *nstance.Definition) { d.Vars = map[string]string{"color": "<green>", "region": "us"} }, false},
		{"nothing fetched yet, tracked", "userdata", func(d *nstance.Definition) { d.UserData.Fetched = nil }, true},
		{"another secret, tracked", "secrets", func(d *nstance.Definition) { d.Secrets = map[string]string{"db": "b"} }, true},
		{"another secret, not tracked", "image", func(d *nstance.Definition) { d.Secrets = map[string]string{"db": "b"} }, false},
		{"a variable, not tracked", "image", func(d *nstance.Definition) { d.Vars = nil }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.counts, with(c.track, same) != with(c.track, c.change))
		})
	}
}

// TestOnlyFetchedBytesAreTracked: user data that nothing was fetched for has no digest of its
// own.
func TestOnlyFetchedBytesAreTracked(t *testing.T) {
	untracked, tracked := full(), full()
	tracked.Track = []nstance.Tracked{nstance.TrackUserData}
	require.Equal(t, infraHash(t, untracked), infraHash(t, tracked), "inline")
	tracked.UserData.Fetched = []byte("left over from a definition that had a URL")
	require.Equal(t, infraHash(t, untracked), infraHash(t, tracked), "inline, with bytes")
	untracked.UserData = nstance.UserData{Source: nstance.SourceURL, Content: "https://example/u"}
	tracked.UserData = untracked.UserData
	require.Equal(t, infraHash(t, untracked), infraHash(t, tracked), "not fetched yet")
}

func TestTrackIsOptIn(t *testing.T) {
	d := tracking()
	d.Track = nil
	before := infraHash(t, d)
	d.Image, d.UserData.Fetched, d.Vars = "ami-2", []byte("x"), nil
	require.Equal(t, before, infraHash(t, d))
}

func TestNamedVars(t *testing.T) {
	vars := map[string]string{"a": "1", "b": "2", "c": "3"}
	for _, c := range []struct {
		name, userdata, args string
		want                 string // letters
	}{
		{"none", "#!/bin/sh", ``, ""},
		{"one", "{{.Vars.a}}", ``, "a"},
		{"in args", "", `{"x":[{"y":"{{.Vars.b}}"}],"z":1}`, "b"},
		{"in both", "{{.Vars.a}}", `{"x":"{{.Vars.b}}"}`, "ab"},
		{"in a condition", `{{if eq .Vars.a "x"}}{{.Vars.b}}{{else}}{{.Vars.c}}{{end}}`, ``, "abc"},
		{"with else", `{{with .Vars.a}}{{.}}{{else}}{{.Vars.b}}{{end}}`, ``, "ab"},
		{"by index", `{{index .Vars "b"}}`, ``, "b"},
		{"by index from the root", `{{range .X}}{{index $.Vars "b"}}{{end}}`, ``, "b"},
		{"from the root", `{{range .X}}{{$.Vars.c}}{{.Vars.a}}{{end}}`, ``, "c"},
		{"through a pipe", `{{.Vars.a | printf "%s" | base64}}`, ``, "a"},
		{"in parentheses", `{{printf "%s" (base64 .Vars.a)}}`, ``, "a"},
		{"in a variable", `{{$x := .Vars.a}}{{$x}}`, ``, "a"},
		{"passed to a template", `{{define "t"}}{{.}}{{end}}{{template "t" .Vars.a}}`, ``, "a"},
		{"one that is not there", `{{.Vars.zz}}`, ``, ""},
		{"something else", `{{.Instance.Vars}}{{.Nonce}}`, ``, ""},
		{"all at once", `{{json .Vars}}`, ``, "abc"},
		{"all data", `{{json .}}`, ``, "abc"},
		{"all data from the root", `{{range .X}}{{json $}}{{end}}`, ``, "abc"},
		{"all data to a template", `{{define "t"}}{{.Vars.a}}{{end}}{{template "t" .}}`, ``, "abc"},
		{"an index that is computed", `{{index .Vars .Instance.Kind}}`, ``, "abc"},
		{"a variable that is everything", `{{$d := .}}{{$d.Vars.a}}`, ``, "abc"},
		{"over all of them", `{{range $k, $v := .Vars}}{{$v}}{{end}}`, ``, "abc"},
		{"a template that is broken", `{{.Vars.a`, ``, "abc"},
		{"args that are broken", "", `{{`, "abc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := nstance.Definition{Vars: vars, UserData: nstance.UserData{Content: c.userdata}, Args: json.RawMessage(c.args)}
			got := ""
			for _, name := range []string{"a", "b", "c"} {
				if v, ok := confighash.NamedVars(d)[name]; ok {
					require.Equal(t, vars[name], v)
					got += name
				}
			}
			require.Equal(t, c.want, got)
			d.UserData = nstance.UserData{Encoding: "base64", Content: base64.StdEncoding.EncodeToString([]byte(c.userdata))}
			require.Len(t, confighash.NamedVars(d), len(c.want), "however it is encoded")
		})
	}
	t.Run("a template that has not been fetched", func(t *testing.T) {
		d := nstance.Definition{Vars: vars, UserData: nstance.UserData{Source: "url", Content: "https://example"}}
		require.Equal(t, vars, confighash.NamedVars(d))
	})
}
