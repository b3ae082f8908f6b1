package s3_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/storage"
)

func isDelete(r *http.Request) bool { return r.Method == http.MethodDelete }

// TestDeletionsCarryCondition: a write between read and deletion is detected by a store
// that honours the condition.
func TestDeletionsCarryCondition(t *testing.T) {
	p, endpoint := proxied(t, service(t))
	s := open(t, endpoint, "")
	v, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
	require.NoError(t, err)
	var condition string
	p.Inject(faultproxy.Fault{Mode: faultproxy.Strip, Match: func(r *http.Request) bool {
		if isDelete(r) {
			condition = r.Header.Get("If-Match")
		}
		return false
	}})
	require.NoError(t, s.DeleteIfMatch(t.Context(), "a", v))
	require.Equal(t, `"`+string(v)+`"`, condition)
}

// TestDeletionsReadAfterConflict: a refused condition means changed or gone; a second
// read decides.
func TestDeletionsReadAfterConflict(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(*testing.T, storage.Store, storage.Version)
		code      nstance.Code
	}{
		"gone": {func(t *testing.T, s storage.Store, v storage.Version) {
			require.NoError(t, s.DeleteIfMatch(t.Context(), "a", v))
		}, nstance.NotFound},
		"changed": {func(t *testing.T, s storage.Store, v storage.Version) {
			_, err := s.PutIfMatch(t.Context(), "a", []byte("2"), v)
			require.NoError(t, err)
		}, nstance.Conflict},
		"neither": {func(*testing.T, storage.Store, storage.Version) {}, nstance.Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			target := service(t)
			p, endpoint := proxied(t, target)
			s, other := open(t, endpoint, ""), open(t, target, "")
			v, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
			require.NoError(t, err)
			p.Inject(faultproxy.Fault{
				Mode: faultproxy.Refuse, Status: http.StatusPreconditionFailed, Body: errorBody("PreconditionFailed"),
				Match: func(r *http.Request) bool {
					if isDelete(r) {
						c.meanwhile(t, other, v)
					}
					return isDelete(r)
				},
			})
			require.Equal(t, c.code, nstance.CodeOf(s.DeleteIfMatch(t.Context(), "a", v)))
		})
	}
}

// TestStoreWithoutConditionalDeletion: a store that refuses the condition works like one
// that ignores it.
func TestStoreWithoutConditionalDeletion(t *testing.T) {
	p, endpoint := proxied(t, service(t))
	p.Inject(faultproxy.Fault{
		Mode: faultproxy.Refuse, Status: http.StatusNotImplemented, Body: errorBody("NotImplemented"), Times: -1,
		Match: func(r *http.Request) bool { return isDelete(r) && r.Header.Get("If-Match") != "" },
	})
	s := open(t, endpoint, "")
	require.NoError(t, storage.Probe(t.Context(), s))
	v1, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
	require.NoError(t, err)
	v2, err := s.PutIfMatch(t.Context(), "a", []byte("2"), v1)
	require.NoError(t, err)
	require.ErrorIs(t, s.DeleteIfMatch(t.Context(), "a", v1), nstance.Conflict)
	refused := p.FaultsHit()
	require.Positive(t, refused)
	require.NoError(t, s.DeleteIfMatch(t.Context(), "a", v2))
	require.Equal(t, refused, p.FaultsHit(), "it is asked once")
	require.ErrorIs(t, s.DeleteIfMatch(t.Context(), "a", v2), nstance.NotFound)
}
