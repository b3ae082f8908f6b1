package records_test

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// TestFormats: a newer minor format is read, a newer major one asks for an upgrade, and what no
// program has ever written is damage.
func TestFormats(t *testing.T) {
	const newer, upgrade, unknown = "is newer than 1.0", "upgrade this program", "is unknown"
	for format, want := range map[string]struct{ readable, understood string }{
		"1.0":               {},
		"1":                 {},
		"1.3":               {understood: newer},
		"2.0":               {newer, newer},
		"2":                 {newer, newer},
		"0.9":               {unknown, unknown},
		"1.x":               {unknown, unknown},
		"2.x":               {unknown, unknown},
		"x.1":               {unknown, unknown},
		"99999999999999.0":  {unknown, unknown},
		"-1.0":              {unknown, unknown},
		"banana":            {unknown, unknown},
		"":                  {"no format field", "no format field"},
		"1.9999999999999.0": {unknown, unknown},
	} {
		t.Run("format "+format, func(t *testing.T) {
			for which, c := range map[string]struct {
				err  error
				want string
			}{
				"read":       {records.Readable(stateKey, []byte(`{"format":"`+format+`"}`)), want.readable},
				"understood": {records.Understood(stateKey, format), want.understood},
			} {
				if c.want == "" {
					require.NoError(t, c.err, which)
					continue
				}
				require.ErrorIs(t, c.err, nstance.Invalid, which)
				require.ErrorContains(t, c.err, stateKey, which)
				require.ErrorContains(t, c.err, c.want, which)
				e, ok := errors.AsType[*nstance.Error](c.err)
				require.True(t, ok)
				require.Equal(t, c.want == newer, e.Remedy == upgrade, "%s: %q", which, e.Remedy)
			}
		})
	}
}

// TestNextHeader: a rewrite keeps the newer minor format, whose fields it keeps, and never lowers the epoch.
func TestNextHeader(t *testing.T) {
	for format, want := range map[string]string{"": "1.0", "1": "1.0", "1.0": "1.0", "1.3": "1.3", "1.x": "1.0", "1.9999999999999": "1.0"} {
		h := records.NextHeader(records.Header{Format: format, Epoch: 5, WriteID: "W"}, 4)
		require.Equal(t, want, h.Format, format)
		require.EqualValues(t, 5, h.Epoch)
		require.NotEqual(t, "W", h.WriteID)
	}
	require.EqualValues(t, 6, records.NextHeader(records.Header{Epoch: 5}, 6).Epoch)
}

// TestDamagedDocuments: the error says what is wrong with the bytes, so that an operator can repair them.
func TestDamagedDocuments(t *testing.T) {
	for name, c := range map[string]struct{ key, data, says string }{
		"is cut off":             {stateKey, `{"format":"1.0",`, "unexpected end of JSON input"},
		"is followed by another": {stateKey, `{"format":"1.0"} {"format":"1.0"}`, "after top-level value"},
		"is followed by text":    {stateKey, `{"format":"1.0"} x`, "after top-level value"},
		"has comments, which people do not write there": {stateKey, "{\"format\":\"1.0\"} // fixed by hand", "invalid character"},
		"has a format that is no text":                  {stateKey, `{"format":1.0}`, "cannot unmarshal number"},
		"has a field of another type":                   {stateKey, `{"format":"1.0","groups":[]}`, "cannot unmarshal array"},
		"of a person is of a newer format":              {"groups/z1.jsonc", `{"format":"2.0"}`, "is newer than 1.0"},
		"of a person is of a unknown format":            {"groups/z1.jsonc", `{"format":"one"}`, "is unknown"},
		"of a person is cut off":                        {"groups/z1.jsonc", `{"groups": {`, "cannot be read"},
	} {
		t.Run("one that "+name, func(t *testing.T) {
			v, unknown, err := records.Decode[state](c.key, []byte(c.data))
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, c.key)
			require.ErrorContains(t, err, c.says)
			require.Zero(t, v)
			require.Empty(t, unknown)
		})
	}
}

// A Subfields is embedded under a name of its own.
type Subfields struct{ Inner string }

type oddlyTagged struct {
	records.Header
	Untagged  string
	Local     string `json:"-"`
	private   string
	Subfields `json:"sub"`
}

// TestUnknownFieldsOfAnyName: a field counts as known only if the decoder stores it.
func TestUnknownFieldsOfAnyName(t *testing.T) {
	const known = `"untagged":"a","sub":{"inner":"b"}`
	const unknown = `"-":"1","header":"2","local":"3","private":"4","subfields":"5"`
	v, rest, err := records.Decode[oddlyTagged](stateKey, []byte(`{"format":"1.0",`+known+`,`+unknown+`}`))
	require.NoError(t, err)
	require.Equal(t, oddlyTagged{Header: records.Header{Format: "1.0"}, Untagged: "a", Subfields: Subfields{"b"}}, v)
	require.Empty(t, v.private)
	out, err := records.Encode(v, rest)
	require.NoError(t, err)
	require.Equal(t, `{"format":"1.0","Untagged":"a","sub":{"Inner":"b"},`+unknown+"}\n", string(out))
}

// TestEncode refuses what is no JSON, with unknown fields too.
func TestEncode(t *testing.T) {
	rec := newInstance(1)
	rec.PricePerHour = math.NaN()
	for _, unknown := range []records.Unknown{nil, {"later": []byte("1")}} {
		_, err := records.Encode(rec, unknown)
		require.ErrorIs(t, err, nstance.Invalid)
	}
	b := newBed()
	_, err := b.recs.Create(t.Context(), rec)
	require.ErrorIs(t, err, nstance.Invalid)
	require.Zero(t, b.Count(storagetest.PutIfAbsent), "nothing is written")
	require.Empty(t, b.recs.All())
	require.Empty(t, b.recs.Problems(), "the stored records are fine")
}

// TestReadHeader reads the header of a document of any kind.
func TestReadHeader(t *testing.T) {
	const doc = `{"format":"1.4","epoch":3,"write_id":"W","fields":["of any kind"]}`
	want := records.Header{Format: "1.4", Epoch: 3, WriteID: "W"}
	for name, c := range map[string]struct {
		key, data string
		fails     bool
	}{
		"a document":                    {key: stateKey, data: doc},
		"a person's document":           {key: "groups/z1.jsonc", data: "// for the weekend\n" + doc},
		"a snapshot":                    {key: snapshotKey, data: string(zipped(t, doc+"\n{\"key\":1}\n"))},
		"a document with comments":      {key: stateKey, data: "// by hand\n" + doc, fails: true},
		"a person's text":               {key: "groups/z1.jsonc", data: "// for the weekend", fails: true},
		"a list":                        {key: stateKey, data: "[]", fails: true},
		"nothing":                       {key: stateKey, fails: true},
		"a snapshot without its gzip":   {key: snapshotKey, data: doc, fails: true},
		"a compressed ordinary object":  {key: stateKey, data: string(zipped(t, doc)), fails: true},
		"a compressed text of a person": {key: "groups/z1.jsonc", data: string(zipped(t, doc)), fails: true},
	} {
		t.Run("of "+name, func(t *testing.T) {
			h, err := records.ReadHeader(storage.Object{Key: c.key, Data: []byte(c.data)})
			if c.fails {
				require.ErrorIs(t, err, nstance.Invalid)
				require.ErrorContains(t, err, c.key)
				return
			}
			require.NoError(t, err)
			require.Equal(t, want, h)
		})
	}
}

// TestDecodeInstance: the error names the first thing that is wrong.
func TestDecodeInstance(t *testing.T) {
	for name, c := range map[string]struct{ key, data, says string }{
		"a newer format":      {keyOf(newInstance(1)), `{"format":"2.0"}`, "is newer than 1.0"},
		"no key of a record":  {"instance/z1", `{"format":"1.0"}`, "is not an instance record's key"},
		"of another instance": {keyOf(newInstance(1)), `{"format":"1.0"}`, `it is the record of ""`},
	} {
		rec, err := records.DecodeInstance(c.key, []byte(c.data))
		require.ErrorIs(t, err, nstance.Invalid, name)
		require.ErrorContains(t, err, c.says, name)
		require.Zero(t, rec, name)
	}
}
