package manager_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/manager"
)

// An answer is a service that always says the same.
type answer struct {
	data  []byte
	fault *manager.Fault
	hangs bool
}

var errAnswered = errors.New("hunter2 is what a text may hold")

func (a answer) Get(ctx context.Context, _ string) ([]byte, error) {
	if a.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if a.fault != nil {
		return nil, errAnswered
	}
	return a.data, nil
}

func (a answer) Fault(err error) (manager.Fault, bool) {
	if !errors.Is(err, errAnswered) {
		return manager.Fault{}, false
	}
	return *a.fault, true
}

// TestMeaning tells faults by their status, and quotes no text of a service.
func TestMeaning(t *testing.T) {
	for status, code := range map[int]nstance.Code{
		301: nstance.Unavailable, 400: nstance.Invalid, 401: nstance.Denied, 403: nstance.Denied, 404: nstance.Unavailable, 408: nstance.Unavailable,
		409: nstance.Unavailable, 413: nstance.Invalid, 429: nstance.Throttled, 500: nstance.Unavailable, 503: nstance.Unavailable,
	} {
		_, err := manager.New(answer{fault: &manager.Fault{Status: status}}, "Service", manager.Options{}).Get(t.Context(), "db")
		require.ErrorIs(t, err, code, status)
		require.NotContains(t, err.Error(), "hunter2")
	}
	_, err := manager.New(answer{fault: &manager.Fault{Status: 400, Means: nstance.NotFound}}, "Service", manager.Options{}).Get(t.Context(), "db")
	require.ErrorIs(t, err, nstance.NotFound)
}

func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := manager.New(answer{hangs: true}, "Service", manager.Options{}).Get(t.Context(), "db")
		require.ErrorIs(t, err, nstance.Unavailable)
		require.Equal(t, manager.DefaultTimeout, time.Since(began))
	})
	_, err := manager.New(answer{}, "Service", manager.Options{}).Get(t.Context(), "db")
	require.ErrorIs(t, err, nstance.Invalid)
	_, err = manager.New(answer{data: make([]byte, 64<<10+1)}, "Service", manager.Options{}).Get(t.Context(), "db")
	require.ErrorIs(t, err, nstance.Invalid)
	_, err = manager.New(answer{data: []byte("x")}, "Service", manager.Options{}).Get(t.Context(), "nonce.key")
	require.ErrorIs(t, err, nstance.Invalid, "the names of the cluster keys are never requested")
}

func TestParseURL(t *testing.T) {
	u, err := manager.ParseURL("x://a/b?prefix=p/&region=r", "x", "region")
	require.NoError(t, err)
	require.Equal(t, "a/b", u.Place)
	require.Equal(t, "p/", u.Prefix)
	require.Equal(t, "r", u.Params.Get("region"))
	for _, bad := range []string{"y://a", "x:a", "x://me:hunter2@a", "x://a?other=1", "x://a?region=", "x://a?region=1&region=2", "x://a#f", "x://a?%zz", "\x00"} {
		_, err := manager.ParseURL(bad, "x", "region")
		require.ErrorIs(t, err, nstance.Invalid, bad)
		require.NotContains(t, err.Error(), "hunter2")
	}
}

func TestOpenLocal(t *testing.T) {
	for _, bad := range []string{
		"env://", "env://APP", "env://app_", "env://_", "env://9_", "env://NSTANCE_", "env://NSTANCE_SECRET_", "env://A_/x", "env://A_?x=1",
		"file://", "file:///", "file://host/dir", "file:dir", "file:///a?b=c", "s3://bucket", "store:x", "store://x", "", "\x00",
	} {
		_, err := manager.OpenLocal(t.Context(), bad)
		require.ErrorIs(t, err, nstance.Invalid, bad)
		require.ErrorContains(t, err, "shard.secrets.source")
	}
	for _, good := range []string{"env://APP_SECRET_", "file:///run/secrets"} {
		src, err := manager.OpenLocal(t.Context(), good)
		require.NoError(t, err, good)
		require.NotNil(t, src, good)
	}
	src, err := manager.OpenLocal(t.Context(), "store:")
	require.NoError(t, err)
	require.Nil(t, src, "every server has it")
}
