package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// TestNewRefuses: New returns an error that names the argument or option, before it reads
// the configuration.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	cloud := simcloud.New(nil)
	defer cloud.Close()
	source := server.FileSource("missing.jsonc")
	for field, r := range map[string]struct {
		store    storage.Store
		provider nstance.Provider
		source   server.Source
		opts     *server.Options
	}{
		"store":        {nil, cloud, source, nil},
		"provider":     {storage.NewMemory(), nil, source, nil},
		"source":       {storage.NewMemory(), cloud, nil, nil},
		"reread":       {storage.NewMemory(), cloud, source, &server.Options{Reread: -1}},
		"key_interval": {storage.NewMemory(), cloud, source, &server.Options{KeyInterval: -1}},
	} {
		t.Run(field, func(t *testing.T) {
			_, err := server.New(t.Context(), r.store, r.provider, r.source, r.opts)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, field+": ")
		})
	}
}
