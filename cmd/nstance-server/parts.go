package main

import (
	"log/slog"

	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/clouds/secrets"
	"github.com/nstance-go/nstance/clouds/store"
	"github.com/nstance-go/nstance/gcp"
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/internal/servercmd"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/provider/qemu"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/proxmox"
	"github.com/nstance-go/nstance/sqlite"
)

// parts are the providers, stores and sources that this program links.
func parts() servercmd.Parts {
	return servercmd.Parts{
		Kinds: provider.Kinds{
			aws.Kind(),
			azure.Kind(),
			gcp.Kind(),
			proxmox.Kind(),
			local.Kind(servercmd.Machine()...),
			simcloud.Kind(),
			qemu.Kind(),
		},
		Storage: store.Open,
		Secrets: secrets.Open,
		Journal: func(path string, log *slog.Logger) (servercmd.Journal, error) {
			return sqlite.Open(path, &sqlite.Options{Log: log})
		},
		Clouds: map[string]func() *dev.Cloud{
			"aws":     devAWS,
			"azure":   devAzure,
			"gcp":     devGCP,
			"proxmox": devProxmox,
		},
	}
}
