package blob_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/azure/blob"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/storage"
)

func TestSeparateConnections(t *testing.T) {
	for _, k := range []string{"SAS_TOKEN", "CONNECTION_STRING", "DOMAIN", "PROTOCOL", "IS_LOCAL_EMULATOR"} {
		t.Setenv("AZURE_STORAGE_"+k, "")
	}
	t.Setenv("AZURE_STORAGEBLOB_CONNECTIONSTRING", "")
	t.Setenv("AZURE_STORAGE_ACCOUNT", "account")
	t.Setenv("AZURE_STORAGE_KEY", "a2V5")
	faultproxy.CheckSeparate(t, http.HandlerFunc(accept), func(addr string) storage.Store {
		s, err := blob.Open(t.Context(), "azblob://box?protocol=http&localemu=true&domain="+addr, nil)
		require.NoError(t, err)
		return s
	})
}
