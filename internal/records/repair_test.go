package records_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestRepair(t *testing.T) {
	s := storage.NewMemory()
	recs := records.New(s, "s1", &records.Options{Epoch: 3})
	rec, err := recs.Create(t.Context(), newInstance(1))
	require.NoError(t, err)
	key := rec.Ref("s1").Key()
	good, err := s.Get(t.Context(), key)
	require.NoError(t, err)
	put := func(data string) storage.Version {
		t.Helper()
		now, err := s.Get(t.Context(), key)
		if err != nil {
			v, err := s.PutIfAbsent(t.Context(), key, []byte(data))
			require.NoError(t, err)
			return v
		}
		v, err := s.PutIfMatch(t.Context(), key, []byte(data), now.Version)
		require.NoError(t, err)
		return v
	}

	t.Run("readable objects are not changed", func(t *testing.T) {
		for _, data := range [][]byte{nil, good.Data} {
			_, err := records.Repair(t.Context(), s, key, good.Version, data, 4)
			require.ErrorIs(t, err, nstance.Conflict)
		}
		now, err := s.Get(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, good, now)
	})
	for name, broken := range map[string]string{
		"no JSON":               `{"format": "1.0", `,
		"empty":                 ``,
		"a newer major format":  `{"format": "2.0"}`,
		"of another instance":   strings.Replace(string(good.Data), `"group":"web"`, `"group":"other"`, 1),
		"a field of wrong type": strings.Replace(string(good.Data), `"created_epoch":`, `"created_epoch":"x","x":`, 1),
	} {
		t.Run("replaced: "+name, func(t *testing.T) {
			require.NotEqual(t, string(good.Data), broken)
			v := put(broken)
			require.Error(t, records.Readable(key, []byte(broken)))
			require.NoError(t, records.Rehearse(t.Context(), s, key, v, good.Data))
			v2, err := records.Repair(t.Context(), s, key, v, good.Data, 9)
			require.NoError(t, err)
			now, err := s.Get(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, v2, now.Version)
			got, err := records.DecodeInstance(key, now.Data)
			require.NoError(t, err)
			require.EqualValues(t, 9, got.Epoch)
			require.NotEqual(t, rec.WriteID, got.WriteID, "each write has an ID of its own")
			got.Header, rec.Header = records.Header{}, records.Header{}
			require.Equal(t, rec, got)
		})
		t.Run("removed: "+name, func(t *testing.T) {
			_, err := records.Repair(t.Context(), s, key, put(broken), nil, 9)
			require.NoError(t, err)
			_, err = s.Get(t.Context(), key)
			require.ErrorIs(t, err, nstance.NotFound)
		})
	}
	t.Run("refused", func(t *testing.T) {
		v := put("x")
		for name, c := range map[string]struct {
			key  string
			v    storage.Version
			data []byte
			code nstance.Code
		}{
			"another version":     {key, v + "0", good.Data, nstance.Conflict},
			"nothing there":       {strings.Replace(key, "web", "db", 1), v, nil, nstance.NotFound},
			"broken as before":    {key, v, []byte("x"), nstance.Invalid},
			"of another instance": {key, v, bytes.Replace(good.Data, []byte(`"web"`), []byte(`"db"`), 1), nstance.Invalid},
			"empty":               {key, v, []byte{}, nstance.Invalid},
		} {
			_, err := records.Repair(t.Context(), s, c.key, c.v, c.data, 9)
			require.ErrorIs(t, err, c.code, name)
			require.ErrorIs(t, records.Rehearse(t.Context(), s, c.key, c.v, c.data), c.code, name)
		}
		now, err := s.Get(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, "x", string(now.Data))
	})
	t.Run("refused with a remedy", func(t *testing.T) {
		for _, stateKey := range []string{"state/s2.json", "groups/s2.jsonc"} {
			v, err := s.PutIfAbsent(t.Context(), stateKey, []byte("{"))
			require.NoError(t, err)
			for data, remedy := range map[string]string{
				"x": "correct it", "[]": "correct it", `{"format":"0.1"}`: "correct it", `{"format":"2.0"}`: "upgrade this program",
			} {
				_, err := records.Repair(t.Context(), s, stateKey, v, []byte(data), 9)
				require.ErrorIs(t, err, nstance.Invalid, data)
				require.ErrorContains(t, err, "the new content cannot be read either: "+stateKey, data)
				e, ok := errors.AsType[*nstance.Error](err)
				require.True(t, ok)
				require.Equal(t, []string{"data", remedy}, []string{e.Field, e.Remedy}, data)
			}
			now, err := s.Get(t.Context(), stateKey)
			require.NoError(t, err)
			require.Equal(t, "{", string(now.Data))
		}
	})
	t.Run("an error of storage is returned, and nothing is changed", func(t *testing.T) {
		const stateKey = "state/s3.json"
		v, err := s.PutIfAbsent(t.Context(), stateKey, []byte("{"))
		require.NoError(t, err)
		for _, data := range [][]byte{nil, []byte(`{"format":"1.0"}`)} {
			for skip := range 2 {
				f := storagetest.NewFaulty(s)
				f.Inject(storagetest.Fault{Skip: skip, Err: nstance.Throttled})
				_, err := records.Repair(t.Context(), f, stateKey, v, data, 9)
				require.ErrorIs(t, err, nstance.Throttled)
				require.Equal(t, skip+1, f.Count(""))
			}
		}
		now, err := s.Get(t.Context(), stateKey)
		require.NoError(t, err)
		require.Equal(t, v, now.Version)
	})
	t.Run("documents keep their fields and their epoch", func(t *testing.T) {
		const key = "state/s1.json"
		v, err := s.PutIfAbsent(t.Context(), key, []byte("{"))
		require.NoError(t, err)
		_, err = records.Repair(t.Context(), s, key, v, []byte(`{"format":"1.0","epoch":5,"write_id":"old","groups":{"default/web":{"paused":true}},"new":[1]}`), 0)
		require.NoError(t, err)
		now, err := s.Get(t.Context(), key)
		require.NoError(t, err)
		require.Contains(t, string(now.Data), `"epoch":5`)
		require.Contains(t, string(now.Data), `"groups":{"default/web":{"paused":true}}`)
		require.Contains(t, string(now.Data), `"new":[1]`)
		require.NotContains(t, string(now.Data), `"old"`)
	})
}
