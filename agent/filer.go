package agent

import (
	"context"
	"log/slog"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent/files"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// maxOrders is how many of the server's messages about files may wait while one
// is carried out. Then the session reads no further, which holds the server up.
const maxOrders = 8

// A filer carries out what servers say about files, one message after another.
// It outlives sessions: a command that runs after a change is not for a broken
// connection to end.
type filer struct {
	store    *files.Store
	instance nstance.InstanceID
	orders   chan order
	log      *slog.Logger

	refused bool // the transfer under way: what is left of it is passed over
	hash    string
}

// An order is one message, and where the answer to it goes.
type order struct {
	message *apiv1.ConnectResponse
	answer  func(*apiv1.ConnectRequest) // returns at once when the session is over
}

func newFiler(o *Options, applied func(hash string) error) *filer {
	return &filer{
		store: files.New(files.Options{
			Dir: o.RecvDir, Mode: o.RecvMode, KeysDir: o.KeysDir, KeysMode: o.KeysMode, Applied: applied,
		}),
		instance: o.InstanceID, orders: make(chan order, maxOrders), log: o.Log,
	}
}

// Run finishes what an earlier agent left and then takes orders until ctx ends,
// which ends a command that runs as well.
func (f *filer) Run(ctx context.Context) error {
	if err := f.store.Open(); err != nil {
		f.log.Warn("files not looked after yet", "code", nstance.CodeOf(err), "err", err)
	}
	_ = f.command(ctx) // it has been logged, and reports say it
	for {
		select {
		case <-ctx.Done():
			if err := f.store.Close(); err != nil {
				f.log.Warn("files not closed well", "err", err)
			}
			return nil
		case o := <-f.orders:
			if m := f.take(ctx, o.message); m != nil {
				o.answer(m)
			}
		}
	}
}

// hand gives the filer a message, unless the session ends first.
func (f *filer) hand(life context.Context, m *apiv1.ConnectResponse, answers chan<- *apiv1.ConnectRequest) {
	answer := func(m *apiv1.ConnectRequest) {
		select {
		case answers <- m:
		case <-life.Done():
		}
	}
	select {
	case f.orders <- order{m, answer}:
	case <-life.Done():
	}
}

// take carries out one message and returns the answer, nil for none.
func (f *filer) take(ctx context.Context, m *apiv1.ConnectResponse) *apiv1.ConnectRequest {
	switch m := m.GetMessage().(type) {
	case *apiv1.ConnectResponse_FileKeysRequest:
		return f.keys(m.FileKeysRequest.GetNames())
	case *apiv1.ConnectResponse_FilesBegin:
		return f.begin(m.FilesBegin)
	case *apiv1.ConnectResponse_FileChunk:
		if f.refused {
			return nil
		}
		if err := f.store.Write(m.FileChunk.GetDigest(), m.FileChunk.GetOffset(), m.FileChunk.GetData()); err != nil {
			return f.refuse(err)
		}
	case *apiv1.ConnectResponse_FilesCommit:
		if f.refused {
			return nil
		}
		return f.commit(ctx, m.FilesCommit.GetHash())
	}
	return nil
}

func (f *filer) begin(m *apiv1.FilesBegin) *apiv1.ConnectRequest {
	f.refused, f.hash = false, m.GetHash()
	set, err := setOf(m)
	if err != nil {
		return f.refuse(err)
	}
	wanted, err := f.store.Begin(set)
	if err != nil {
		return f.refuse(err)
	}
	return &apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FilesWanted{FilesWanted: &apiv1.FilesWanted{Hash: f.hash, Digests: wanted}}}
}

func setOf(m *apiv1.FilesBegin) (files.Set, error) {
	set := files.Set{Hash: m.GetHash()}
	var err error
	if set.Command, err = wire.CommandOf(m.GetPostApply()); err != nil {
		return set, err
	}
	for _, w := range m.GetFiles() {
		set.Files = append(set.Files, files.File{
			Path: w.GetPath(), Digest: w.GetDigest(), Size: w.GetSize(), Mode: w.GetMode(), Error: clean(w.GetError()), Key: w.GetKey(),
		})
	}
	return set, nil
}

func (f *filer) commit(ctx context.Context, hash string) *apiv1.ConnectRequest {
	if err := f.store.Commit(hash); err != nil {
		return f.refuse(err)
	}
	f.log.Info("files in place", "hash", hash)
	return f.applied(f.command(ctx))
}

// command runs what is to be run after a change, if anything is.
func (f *filer) command(ctx context.Context) error {
	err := f.store.Run(ctx)
	if err != nil && ctx.Err() == nil {
		f.log.Warn("command after a change of files", "err", err)
	}
	return err
}

// refuse passes over the rest of a transfer.
func (f *filer) refuse(err error) *apiv1.ConnectRequest {
	f.refused = true
	f.log.Warn("files not changed", "hash", f.hash, "code", nstance.CodeOf(err), "err", err)
	return f.applied(err)
}

func (f *filer) applied(err error) *apiv1.ConnectRequest {
	m := &apiv1.FilesApplied{Hash: f.hash, Files: wire.FileStatuses(f.store.Status())}
	if err != nil {
		m.Error = clean(err.Error())
	}
	return &apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FilesApplied{FilesApplied: m}}
}

// keys answers with requests for certificates. The keys themselves stay here.
func (f *filer) keys(names []string) *apiv1.ConnectRequest {
	m := &apiv1.FileKeys{}
	for _, k := range f.store.Keys(string(f.instance), names) {
		w := &apiv1.FileKey{Name: k.Name, Csr: k.Request, Certificate: k.Certificate}
		if k.Err != nil {
			w.Error = clean(k.Err.Error())
		}
		m.Keys = append(m.Keys, w)
	}
	return &apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FileKeys{FileKeys: m}}
}

// record writes the hash of the files in place where reports take it from.
func (v vault) record(hash string) error {
	if hash == "" || len(hash) > 256 || clean(hash) != hash || strings.ContainsAny(hash, " \n") {
		return nstance.Errorf(nstance.Invalid, "%q is not a hash", hash[:min(len(hash), 80)])
	}
	return v.write(v.path(fileConfigHash), []byte(hash+"\n"))
}
