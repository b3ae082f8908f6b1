package agent

import (
	"context"
	"log/slog"
	"strings"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/machinefiles"
	"github.com/nstance-go/nstance/internal/wire"
)

// maxFileMessages is how many of the server's messages about files may wait while
// one is handled. Then the session stops reading, which slows down the server.
const maxFileMessages = 8

// A fileWorker handles the server's messages about files one after another. It
// outlives sessions: a broken connection does not end a running command.
type fileWorker struct {
	store    *machinefiles.Store
	instance nstance.InstanceID
	messages chan fileMessage
	log      *slog.Logger

	skipTransfer bool // the transfer under way has failed
	hash         string
}

// A fileMessage is one message with the function that answers it.
type fileMessage struct {
	message *apiv1.ConnectResponse
	answer  func(*apiv1.ConnectRequest) // returns at once when the session has ended
}

func newFileWorker(o *Options, applied func(hash string) error) *fileWorker {
	return &fileWorker{
		store: machinefiles.New(machinefiles.Options{
			Dir: o.RecvDir, Mode: o.RecvMode, KeysDir: o.KeysDir, KeysMode: o.KeysMode, Applied: applied,
		}),
		instance: o.InstanceID, messages: make(chan fileMessage, maxFileMessages), log: o.Log,
	}
}

// Run finishes an interrupted change of an earlier agent and then handles messages
// until ctx ends, which also kills a running command.
func (f *fileWorker) Run(ctx context.Context) error {
	if err := f.store.Open(); err != nil {
		f.log.Warn("files not checked at start: checked again with the next file set", "code", nstance.CodeOf(err), "err", err)
	}
	_ = f.runCommand(ctx) // it has been logged, and is in reports
	for {
		select {
		case <-ctx.Done():
			if err := f.store.Close(); err != nil {
				f.log.Warn("receive directory not closed", "err", err)
			}
			return nil
		case in := <-f.messages:
			if m := f.handleMessage(ctx, in.message); m != nil {
				in.answer(m)
			}
		}
	}
}

// enqueue adds a message to the queue, unless the session ends first.
func (f *fileWorker) enqueue(life context.Context, m *apiv1.ConnectResponse, answers chan<- *apiv1.ConnectRequest) {
	answer := func(m *apiv1.ConnectRequest) {
		select {
		case answers <- m:
		case <-life.Done():
		}
	}
	select {
	case f.messages <- fileMessage{m, answer}:
	case <-life.Done():
	}
}

// handleMessage returns the answer to one message, nil for none.
func (f *fileWorker) handleMessage(ctx context.Context, m *apiv1.ConnectResponse) *apiv1.ConnectRequest {
	switch m := m.GetMessage().(type) {
	case *apiv1.ConnectResponse_FileKeysRequest:
		return f.keys(m.FileKeysRequest.GetNames())
	case *apiv1.ConnectResponse_FilesBegin:
		return f.begin(m.FilesBegin)
	case *apiv1.ConnectResponse_FileChunk:
		if f.skipTransfer {
			return nil
		}
		if err := f.store.Write(m.FileChunk.GetDigest(), m.FileChunk.GetOffset(), m.FileChunk.GetData()); err != nil {
			return f.refuse(err)
		}
	case *apiv1.ConnectResponse_FilesCommit:
		if f.skipTransfer {
			return nil
		}
		return f.commit(ctx, m.FilesCommit.GetHash())
	}
	return nil
}

func (f *fileWorker) begin(m *apiv1.FilesBegin) *apiv1.ConnectRequest {
	f.skipTransfer, f.hash = false, m.GetHash()
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

func setOf(m *apiv1.FilesBegin) (machinefiles.Set, error) {
	set := machinefiles.Set{Hash: m.GetHash()}
	var err error
	if set.Command, err = wire.CommandOf(m.GetPostApply()); err != nil {
		return set, err
	}
	for _, w := range m.GetFiles() {
		set.Files = append(set.Files, machinefiles.File{
			Path: w.GetPath(), Digest: w.GetDigest(), Size: w.GetSize(), Mode: w.GetMode(), Error: wire.Text(w.GetError()), Key: w.GetKey(),
		})
	}
	return set, nil
}

func (f *fileWorker) commit(ctx context.Context, hash string) *apiv1.ConnectRequest {
	if err := f.store.Commit(hash); err != nil {
		return f.refuse(err)
	}
	f.log.Info("files in place", "hash", hash)
	return f.applied(f.runCommand(ctx))
}

// runCommand runs the command of the set in use, if it is pending.
func (f *fileWorker) runCommand(ctx context.Context) error {
	err := f.store.Run(ctx)
	if err != nil && ctx.Err() == nil {
		f.log.Warn("command after a change of files failed: it runs again with the next change or start", "err", err)
	}
	return err
}

// refuse skips the rest of a transfer.
func (f *fileWorker) refuse(err error) *apiv1.ConnectRequest {
	f.skipTransfer = true
	f.log.Warn("file set not applied: the files stay as they are", "hash", f.hash, "code", nstance.CodeOf(err), "err", err)
	return f.applied(err)
}

func (f *fileWorker) applied(err error) *apiv1.ConnectRequest {
	m := &apiv1.FilesApplied{Hash: f.hash, Files: wire.FileStatuses(f.store.Status())}
	if err != nil {
		m.Error = wire.Text(err.Error())
	}
	return &apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FilesApplied{FilesApplied: m}}
}

// keys answers with requests for certificates. The keys themselves stay here.
func (f *fileWorker) keys(names []string) *apiv1.ConnectRequest {
	m := &apiv1.FileKeys{}
	for _, k := range f.store.Keys(string(f.instance), names) {
		w := &apiv1.FileKey{Name: k.Name, Csr: k.Request, Certificate: k.Certificate}
		if k.Err != nil {
			w.Error = wire.Text(k.Err.Error())
		}
		m.Keys = append(m.Keys, w)
	}
	return &apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FileKeys{FileKeys: m}}
}

// record writes the hash of the applied files to the file that reports read.
func (v identityDir) record(hash string) error {
	if hash == "" || len(hash) > 256 || wire.Text(hash) != hash || strings.ContainsAny(hash, " \n") {
		return nstance.Errorf(nstance.Invalid, "%q is not a hash", clip.Quote(hash))
	}
	return v.write(v.path(fileConfigHash), []byte(hash+"\n"))
}
