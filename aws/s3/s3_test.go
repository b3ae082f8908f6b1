package s3_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestStore(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store { return open(t, service(t), "") })
}

func TestStoreOfTwoServers(t *testing.T) {
	storagetest.Shared(t, func(t *testing.T) (first, second storage.Store) {
		endpoint := service(t)
		return open(t, endpoint, ""), open(t, endpoint, "")
	})
}

func TestStoreWithPrefix(t *testing.T) {
	endpoint := service(t)
	outside := open(t, endpoint, "")
	for _, key := range []string{"a", "prod", "prod-2/instance/a", "prodigy", "z"} {
		_, err := outside.PutIfAbsent(t.Context(), key, nil)
		require.NoError(t, err)
	}
	storagetest.Run(t, func(t *testing.T) storage.Store {
		return open(t, endpoint, "&prefix=prod/"+t.Name()[len("TestStoreWithPrefix/"):])
	})
}

func TestProbeRefusesServiceWithoutConditions(t *testing.T) {
	for _, headers := range [][]string{{"If-None-Match"}, {"If-Match"}, {"If-None-Match", "If-Match"}} {
		t.Run(headers[0], func(t *testing.T) {
			p, endpoint := proxied(t, service(t))
			s := open(t, endpoint, "")
			p.Inject(faultproxy.Fault{Mode: faultproxy.Strip, Headers: headers, Times: -1})
			err := storage.Probe(t.Context(), s)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, "this storage cannot be used")
			p.ClearFaults()
			require.NoError(t, storage.Probe(t.Context(), s))
		})
	}
}
