package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/files"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/render"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/internal/registrar"
	"github.com/nstance-go/nstance/storage"
)

// bootstrap renders the user data of new machines.
type bootstrap struct{ s *Server }

// Render implements reconcile.Bootstrap. The nonce's claims come from the
// record alone and its signature is deterministic, so equal records give equal
// bytes at this server. Another server has other addresses.
func (b bootstrap) Render(ctx context.Context, rec *storage.Instance, def nstance.Definition) (reconcile.Rendered, error) {
	nonce, err := b.nonce(rec, def)
	if err != nil {
		return reconcile.Rendered{}, err
	}
	content, err := def.UserData.Template() // as the definition has it: nothing is fetched here
	if err != nil {
		return reconcile.Rendered{}, err
	}
	data := b.data(rec, def)
	args, err := renderArgs(ctx, def.Args, data)
	if err != nil {
		return reconcile.Rendered{}, err
	}
	data.Nonce = nonce // for user data only: arguments end up in logs and consoles
	userData, err := renderText(ctx, "userdata.content", content, data)
	return reconcile.Rendered{UserData: []byte(userData), Args: args}, err
}

// renderArgs renders every string within args.
func renderArgs(ctx context.Context, args json.RawMessage, data files.Boot) (json.RawMessage, error) {
	if len(args) == 0 || !bytes.Contains(args, []byte("{{")) {
		return args, nil
	}
	v, err := render.JSON("args", args, func(path, text string) (string, error) { return renderText(ctx, path, text, data) })
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

func (b bootstrap) nonce(rec *storage.Instance, def nstance.Definition) (string, error) {
	hash := rec.RuntimeHash
	if len(def.Files) > 0 {
		hash = "" // the machine is born without its files, and records their hash once it has them
	}
	if rec.NonceKeyID == "" {
		rec.NonceKeyID = b.s.keys.Nonces.KeyID()
	}
	conf := b.s.config.InForce()
	nonce, err := b.s.keys.Nonces.Mint(rec.NonceKeyID, keyring.Claims{
		Kind: nstance.RoleAgent, Subject: string(rec.ID), Cluster: conf.Cluster.ID, Shard: conf.Shard.ID,
		Tenant: rec.Tenant, Group: rec.Group, OnDemand: rec.OnDemand, ConfigHash: hash,
		NotBefore: rec.CreatedAt.Add(-time.Minute), Expiry: registrar.NonceExpiry(*rec),
	})
	if errors.Is(err, nstance.NotFound) { // its key was finished by force: these bytes cannot be made again
		return "", nstance.Errorf(nstance.Conflict, "user data of %s cannot be made again: %v", rec.ID, err)
	}
	return nonce, err
}

// authorities returns the certificates that the machine trusts. The record names them,
// so that user data is the same when it is rendered again.
func (b bootstrap) authorities(rec *storage.Instance) string {
	identity := b.s.keys.Identity
	if len(rec.Authorities) == 0 {
		rec.Authorities = identity.Issuers()
	}
	return string(identity.CertPEMOf(rec.Authorities))
}

func (b bootstrap) data(rec *storage.Instance, def nstance.Definition) files.Boot {
	conf := b.s.config.InForce()
	return files.Boot{Seen: files.Seen{
		Instance: files.Instance{
			ID: rec.ID, Kind: rec.ID.Kind(), Arch: def.Arch, Type: rec.Shape.InstanceType,
			Hostname: string(rec.ID), // never what the machine has said since: these bytes may be made again
		},
		Cluster:  files.Cluster{ID: conf.Cluster.ID, CACert: b.authorities(rec)},
		Server:   b.s.serverAddresses(),
		Provider: files.Provider{Kind: conf.Shard.Provider.Kind, Region: conf.Shard.Provider.Region, Zone: conf.Shard.Provider.Zone},
		Vars:     def.Vars, Image: rec.Image,
	}}
}

func renderText(ctx context.Context, field, content string, data files.Boot) (string, error) {
	out, err := new(render.Renderer).Text(ctx, content, data)
	switch {
	case err == nil:
		return out, nil
	case errors.Is(err, nstance.Unavailable):
		return "", fmt.Errorf("%s: %w", field, err)
	}
	return "", nstance.FieldError(field, "correct the template, or define the variable", "%v", err)
}
