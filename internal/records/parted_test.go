package records_test

import (
	"encoding/json"
	"errors"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// counters is a document that copies, compares and encodes itself.
type counters struct {
	records.Header
	Parts map[string]int `json:"parts"`

	cached string // kept in memory beside the parts
}

func (c counters) Copy() counters {
	c.Parts = maps.Clone(c.Parts)
	return c
}

func (c counters) Same(o counters) bool { return maps.Equal(c.Parts, o.Parts) }

func (c counters) AppendJSON(to []byte) ([]byte, error) {
	if c.Parts["bad"] != 0 {
		return nil, errors.New("a part cannot be encoded")
	}
	data, err := json.Marshal(struct {
		records.Header
		Parts map[string]int `json:"parts"`
		By    string         `json:"by"` // shows that it was encoded here
	}{c.Header, c.Parts, "itself"})
	return append(to, data...), err
}

var _ records.Parted[counters] = counters{}

func TestPartedDocument(t *testing.T) {
	setUp := func(t *testing.T) (recordsTest, *records.Doc[counters]) {
		b := newBed()
		b.put(t, stateKey, `{"format":"1.2","epoch":7,"write_id":"W","parts":{"a":1},"later":[1]}`)
		d := records.NewDoc[counters](b, stateKey, &records.DocOptions{Epoch: 7})
		_, err := d.Load(t.Context())
		require.NoError(t, err)
		b.Reset()
		return b, d
	}
	add := func(part string) func(*counters) error {
		return func(c *counters) error { c.Parts[part]++; return nil }
	}
	bubble(t, "is encoded by itself, and keeps the fields that it lacks", func(t *testing.T) {
		b, d := setUp(t)
		got, err := d.Update(t.Context(), add("b"))
		require.NoError(t, err)
		require.Equal(t, map[string]int{"a": 1, "b": 1}, got.Parts)
		require.Equal(t, 1, b.Count(""))
		obj, err := b.mem.Get(t.Context(), stateKey)
		require.NoError(t, err)
		require.Regexp(t, `^\{"format":"1\.2","epoch":7,"write_id":"[A-Z2-7]{26}","parts":\{"a":1,"b":1\},"by":"itself","later":\[1\]\}\n$`, string(obj.Data))
		held, _ := d.Held()
		require.Equal(t, got, held)
	})
	bubble(t, "keeps what it holds in memory, since it is not decoded anew", func(t *testing.T) {
		_, d := setUp(t)
		for i, want := range []string{"", "seen", "seen"} {
			got, err := d.Update(t.Context(), func(c *counters) error {
				require.Equal(t, want, c.cached, i)
				c.cached = "seen"
				return add("a")(c)
			})
			require.NoError(t, err)
			require.Equal(t, "seen", got.cached)
		}
	})
	bubble(t, "is not written when nothing changes", func(t *testing.T) {
		b, d := setUp(t)
		for range 2 {
			got, err := d.Update(t.Context(), func(*counters) error { return nil })
			require.NoError(t, err)
			require.Equal(t, map[string]int{"a": 1}, got.Parts)
		}
		require.Zero(t, b.Count(""))
	})
	bubble(t, "is written when only its epoch is raised", func(t *testing.T) {
		b, d := setUp(t)
		got, err := d.Update(t.Context(), func(c *counters) error { c.Epoch = 9; return nil })
		require.NoError(t, err)
		require.EqualValues(t, 9, got.Epoch)
		require.Equal(t, 1, b.Count(storagetest.PutIfMatch))
	})
	bubble(t, "keeps its epoch when an update lowers it", func(t *testing.T) {
		b, d := setUp(t)
		got, err := d.Update(t.Context(), func(c *counters) error { c.Header = records.Header{}; return nil })
		require.NoError(t, err)
		require.EqualValues(t, 7, got.Epoch)
		require.Zero(t, b.Count(""), "nothing else has changed")
	})
	bubble(t, "is not changed by an update that fails", func(t *testing.T) {
		b, d := setUp(t)
		no := errors.New("no")
		_, err := d.Update(t.Context(), func(c *counters) error { c.Parts["a"] = 5; return no })
		require.Equal(t, no, err)
		held, _ := d.Held()
		require.Equal(t, map[string]int{"a": 1}, held.Parts)
		require.Zero(t, b.Count(""))
	})
	bubble(t, "is not written when it cannot be encoded", func(t *testing.T) {
		b, d := setUp(t)
		_, err := d.Update(t.Context(), add("bad"))
		require.ErrorIs(t, err, nstance.Invalid)
		require.Zero(t, b.Count(""))
		got, err := d.Update(t.Context(), add("a"))
		require.NoError(t, err, "the document itself is fine")
		require.Equal(t, map[string]int{"a": 2}, got.Parts)
	})
	bubble(t, "settles a lost answer like any document", func(t *testing.T) {
		b, d := setUp(t)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer})
		got, err := d.Update(t.Context(), add("a"))
		require.NoError(t, err)
		require.Equal(t, map[string]int{"a": 2}, got.Parts)
	})
}
