package blob_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure/blob"
)

// TestExplanation: what the service explains is kept.
func TestExplanation(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Ms-Error-Code", "BlobImmutableDueToPolicy")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`<?xml version="1.0" encoding="utf-8"?><Error><Code>BlobImmutableDueToPolicy</Code><Message>This operation is not
			permitted as the blob is immutable due to a policy.</Message></Error>`))
	}))
	defer service.Close()
	client, err := container.NewClientWithNoCredential(service.URL+"/account/prod", nil)
	require.NoError(t, err)
	store, err := blob.New(client, nil)
	require.NoError(t, err)
	_, err = store.PutIfAbsent(t.Context(), "a", []byte("content"))
	require.ErrorIs(t, err, nstance.Denied)
	require.ErrorContains(t, err, "403 BlobImmutableDueToPolicy: This operation is not permitted as the blob is immutable due to a policy.")
}
