package main

import (
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/internal/opener"
	"github.com/nstance-go/nstance/internal/servercmd"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/aws"
	"github.com/nstance-go/nstance/provider/azure"
	"github.com/nstance-go/nstance/provider/gcp"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/provider/proxmox"
	"github.com/nstance-go/nstance/provider/qemu"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage/blob"
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
		Storage: blob.Open,
		Secrets: opener.Open,
		Clouds: map[string]func() *dev.Cloud{
			"aws":     devAWS,
			"azure":   devAzure,
			"gcp":     devGCP,
			"proxmox": devProxmox,
		},
	}
}
