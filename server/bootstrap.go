package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/files"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/render"
	"github.com/nstance-go/nstance/reconcile"
)

// bootstrap renders the user data of new machines.
type bootstrap struct {
	s *Server
	t *term
}

// Render implements reconcile.Bootstrap. The nonce's claims come from the
// request alone and its signature is deterministic, so equal requests give equal
// bytes at this server. Another server has other addresses.
func (b bootstrap) Render(ctx context.Context, req reconcile.RenderRequest) (reconcile.Rendered, error) {
	if req.SignedWith.NonceKeyID == "" {
		req.SignedWith.NonceKeyID = b.s.keys.Nonces.KeyID()
	}
	if len(req.SignedWith.Authorities) == 0 {
		req.SignedWith.Authorities = b.s.keys.Identity.Issuers()
	}
	nonce, err := b.nonce(req)
	if err != nil {
		return reconcile.Rendered{}, err
	}
	def := req.Definition
	content, err := def.UserData.Template() // as the definition has it: nothing is fetched here
	if err != nil {
		return reconcile.Rendered{}, err
	}
	bootstrapData, err := b.bootstrapData(ctx, req, content)
	if err != nil {
		return reconcile.Rendered{}, err
	}
	data := b.data(req)
	args, err := renderArgs(ctx, def.Args, data)
	if err != nil {
		return reconcile.Rendered{}, err
	}
	data.Nonce, data.BootstrapData = nonce, bootstrapData // for user data only: arguments end up in logs and consoles
	userData, err := renderText(ctx, "userdata.content", content, data)
	if err != nil {
		return reconcile.Rendered{}, err
	}
	limit := cmp.Or(maxUserData(b.t.conf), defaultMaxUserData)
	fitting := render.Fit([]byte(userData), limit)
	if len(fitting) > limit {
		return reconcile.Rendered{}, nstance.FieldError("userdata", render.Overlong(fitting), "%d bytes are more than the permitted %d", len(fitting), limit)
	}
	return reconcile.Rendered{UserData: fitting, Args: args, SignedWith: req.SignedWith}, nil
}

// defaultMaxUserData is what provider.Options has when a composition says nothing.
const defaultMaxUserData = 16 << 10

// bootstrapData returns what a template has as such. A machine must not boot without what
// its user data names.
func (b bootstrap) bootstrapData(ctx context.Context, req reconcile.RenderRequest, content string) (string, error) {
	switch uses := config.UsesBootstrapData(content); {
	case !uses:
		return "", nil
	case req.BootstrapData == "":
		return "", nstance.FieldError("bootstrap_data", "give it in a request for the group", "user data of group %s names it, and there is none", req.Group)
	}
	return b.t.groups.BootstrapData(ctx, req.BootstrapData)
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

func (b bootstrap) nonce(req reconcile.RenderRequest) (string, error) {
	hash := req.RuntimeHash
	if len(req.Definition.Files) > 0 {
		hash = "" // the machine is born without its files, and records their hash once it has them
	}
	conf := b.s.config.InForce()
	nonce, err := b.s.keys.Nonces.Mint(req.SignedWith.NonceKeyID, keyring.Claims{
		Kind: nstance.RoleAgent, Subject: string(req.ID), Cluster: conf.Cluster.ID, Shard: conf.Shard.ID,
		Tenant: req.Group.Tenant, Group: req.Group.Group, OnDemand: req.OnDemand, ConfigHash: hash,
		NotBefore: req.CreatedAt.Add(-time.Minute), Expiry: req.RegisterBy,
	})
	if errors.Is(err, nstance.NotFound) { // its key was finished by force: these bytes cannot be made again
		return "", nstance.Errorf(nstance.Conflict, "user data of %s cannot be made again: %v", req.ID, err)
	}
	return nonce, err
}

func (b bootstrap) data(req reconcile.RenderRequest) files.Boot {
	conf := b.s.config.InForce()
	return files.Boot{Seen: files.Seen{
		Instance: files.Instance{
			ID: req.ID, Kind: req.ID.Kind(), Arch: req.Definition.Arch, Type: req.InstanceType,
			Hostname: string(req.ID), // never what the machine has said since: these bytes may be made again
		},
		Cluster:  files.Cluster{ID: conf.Cluster.ID, CACert: string(b.s.keys.Identity.CertPEMOf(req.SignedWith.Authorities))},
		Server:   b.s.serverAddresses(),
		Provider: files.Provider{Kind: conf.Shard.Provider.Kind, Region: conf.Shard.Provider.Region, Zone: conf.Shard.Provider.Zone},
		Vars:     req.Definition.Vars, Image: req.Image,
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
