package servercmd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/logqueue"
	"github.com/nstance-go/nstance/internal/manager"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// running is what run is told.
type running struct {
	parts                        Parts
	config, storage, shard, data string
	keys                         vault.KeySource
	host                         string
	bind, advertise              map[string]string // by port
	events                       io.Writer         // for the journal, as JSON lines; nil: nowhere
	getenv                       func(string) string
	log                          *slog.Logger
	logLost                      func() int64 // lines of the log that were dropped

	ownBind, ownAdvertise server.Addresses // as prepare finds them
}

// The pause after the first attempt to start that failed, and the longest one.
const (
	startBackoff    = 500 * time.Millisecond
	maxStartBackoff = 30 * time.Second
)

func (p *program) runCommand() *cobra.Command {
	r := &running{parts: p.parts, getenv: p.getenv}
	var printEvents, tethered bool
	cmd := &cobra.Command{
		Use:   "run (--config FILE | --storage URL --shard NAME)",
		Short: "Serve one shard",
		Long: `Serve one shard until SIGTERM or SIGINT. The configuration is a file, or the
shard's object in storage. SIGHUP reloads it; an invalid one changes nothing.

What can pass does not end the program: while storage or the cloud does not answer,
throttles or refuses, it tries again, answers GET /healthz at --bind http and logs
why. It ends for a mistake, and for a configuration that is not there.

Any number of servers may serve one shard over the same storage: one of them
leads, the others wait until its lease is released or expires
(shard.election.ttl). They find each other through the lease. The addresses where
a server listens, and where others reach it, can be set for each server:

  --bind agent=:9994,peer=:9991    instead of shard.bind
  --advertise agent=lb.example:94  instead of shard.advertise
  --host 10.0.0.5                  where others reach the ports not advertised
                                   (default: the address bound to, or this
                                   machine's on its way to other networks)

Ports are http, registration, operator, agent and peer.

Private keys are sealed in storage with a key of 32 random bytes in base64, as
openssl rand -base64 32 prints one. The source of this key:

  --key-provider env    in variable --key-source (default ` + vault.KeyVariable + `)
  --key-provider file   in file --key-source
                        there may be several keys: the first one seals, all of them open
  --key-provider none   nowhere: keys are stored as they are, for a private directory`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&r.config, "config", "", "file of the configuration (default: config/SHARD.jsonc in storage)")
	f.StringVar(&r.storage, "storage", "", "URL of the storage: file:///directory, s3://bucket, gs://bucket, azblob://container or mem:// (default: storage in --data)")
	f.StringVar(&r.shard, "shard", "", "name of the shard; checked, if --config is given")
	f.StringVar(&r.data, "data", "", "directory for the journal (default $STATE_DIRECTORY, or nstance-server in the user's state directory)")
	f.StringVar(&r.keys.Provider, "key-provider", vault.KeysInEnv, "where the key is that seals private keys: env, file or none")
	f.StringVar(&r.keys.Source, "key-source", "", "name of the variable, or path of the file")
	f.StringVar(&r.host, "host", "", "name or address at which others reach this server")
	f.StringToStringVar(&r.bind, "bind", nil, "where to listen, as PORT=HOST:PORT, instead of shard.bind")
	f.StringToStringVar(&r.advertise, "advertise", nil, "where others reach this server, as PORT=HOST:PORT, instead of shard.advertise")
	f.BoolVar(&printEvents, "print-events", false, "print events to standard output, one JSON object per line")
	f.BoolVar(&tethered, "tethered", false, "stop when standard input ends")
	_ = f.MarkHidden("tethered") // for dev, so that its servers end with it
	var consistency time.Duration
	f.DurationVar(&consistency, "consistency", 0, "how long the cloud may not know its own new machine")
	_ = f.MarkHidden("consistency") // for dev, which knows its test clouds' delays
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log, lines, err := p.logger(slog.LevelInfo)
		if err != nil {
			return err
		}
		defer lines.Close()
		defer logqueue.Libraries(log)()
		r.log, r.logLost = log, lines.Dropped
		if printEvents {
			r.events = p.stdout
		}
		if consistency > 0 {
			r.parts.Kinds = slices.Clone(r.parts.Kinds)
			for i := range r.parts.Kinds {
				r.parts.Kinds[i].Consistency = consistency
			}
		}
		ctx := cmd.Context()
		if tethered {
			ctx = tether(ctx, os.Stdin)
		}
		if err = r.run(ctx); err != nil {
			return p.printed(log, lines, err)
		}
		return nil
	}
	return cmd
}

// run serves until ctx ends. What can pass, such as storage that does not answer yet, is
// tried again for as long as it takes: only a mistake, or a configuration that is not
// there, ends the program.
func (r *running) run(ctx context.Context) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP) // from the first moment: else it would end the process
	defer signal.Stop(hup)
	if err := r.prepare(); err != nil {
		return err
	}
	starting := startingPages{address: r.httpAddress(), log: r.log}
	defer starting.close()
	starting.open(ctx)
	for failures := 1; ; failures++ {
		err := r.attempt(ctx, hup, starting.close)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if code := nstance.CodeOf(err); code == nstance.Invalid || code == nstance.NotFound {
			return err
		}
		starting.open(ctx)
		wait := sleep.Jitter(sleep.Backoff(failures, startBackoff, maxStartBackoff))
		r.log.Warn("this server cannot start yet, retrying", "wait", wait.Round(time.Millisecond), "code", nstance.CodeOf(err), "err", err)
		retry := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-hup: // something was changed
		case <-retry.C:
		}
		retry.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// prepare checks what no attempt changes.
func (r *running) prepare() (err error) {
	if err := r.place(); err != nil {
		return err
	}
	r.ownBind, r.ownAdvertise, err = r.addresses()
	return err
}

// attempt starts a server and serves until ctx ends. It calls opening before the server
// opens its ports.
func (r *running) attempt(ctx context.Context, hup <-chan os.Signal, opening func()) (err error) {
	box, err := r.keys.Box(r.getenv) // which may be a file of a disk that is not there yet
	if err != nil {
		return err
	}
	open := r.parts.Storage
	if open == nil {
		open = storage.Open
	}
	store, err := open(ctx, r.storage)
	if err != nil {
		return err
	}
	source, err := r.source(store)
	if err != nil {
		return err
	}
	conf, err := r.configuration(ctx, source)
	if err != nil {
		return err
	}
	cloud, end, err := conf.Shard.Provider.Open(ctx, r.parts.Kinds, r.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	openSecrets := r.parts.Secrets
	if openSecrets == nil {
		openSecrets = manager.OpenLocal
	}
	secrets, err := openSecrets(ctx, string(conf.Shard.Secrets.Source))
	if err != nil {
		return err
	}
	traces, endTraces, err := r.traces(ctx, conf.Shard.ID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endTraces()) }()
	events := newEvents(r.events, r.log)
	defer events.close()
	if _, ok := store.(*storage.Memory); ok { // which no other process can know
		if _, err := lease.Prepare(ctx, store, conf.Shard.ID); err != nil {
			return err
		}
	}
	kept, closeJournal, err := r.openJournal(conf.Shard.ID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeJournal()) }()
	s, err := server.New(ctx, store, cloud, source, &server.Options{
		Kinds: r.parts.Kinds, Secrets: box, SecretSource: secrets, Events: kept,
		Journal: events.tell, Shared: true, Host: r.host, Bind: r.ownBind, Advertise: r.ownAdvertise, Traces: traces,
		Log: r.log, LogLost: r.logLost,
	})
	if err != nil {
		return err
	}
	r.log.Info("nstance-server starts", "version", versionText(), "cluster", conf.Cluster.ID, "shard", conf.Shard.ID, "storage", r.storage)
	opening()
	return r.serve(ctx, s, hup)
}

// openJournal opens the shard's journal, if this program is linked with one that is kept
// in a file; else it returns nil, and the server keeps its events in memory.
func (r *running) openJournal(shard nstance.ShardID) (_ journal.Journal, closeJournal func() error, err error) {
	if r.parts.Journal == nil {
		return nil, func() error { return nil }, nil
	}
	kept, err := r.parts.Journal(filepath.Join(r.data, "journal-"+string(shard)+".db"), r.log)
	if err != nil {
		return nil, nil, err
	}
	return kept, kept.Close, nil
}

// serve runs s until ctx ends, and has it read its configuration at each hup.
func (r *running) serve(ctx context.Context, s *server.Server, hup <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { reload(ctx, hup, s, r.log) })
	return s.Run(ctx)
}

func reload(ctx context.Context, hup <-chan os.Signal, s *server.Server, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			if changed, err := s.Refresh(ctx); err == nil { // else it has been logged
				log.Info("configuration reloaded", "changed", changed)
			}
		}
	}
}

// place fills in where things are kept.
func (r *running) place() error {
	if r.data == "" {
		r.data = stateDir(r.getenv)
	}
	if r.data == "" {
		return nstance.FieldError("--data", "name a directory that the server may write to", "is not given, and there is no state directory")
	}
	data, err := filepath.Abs(r.data)
	if err != nil {
		return nstance.FieldError("--data", "name a directory by its whole path", "%v", err)
	}
	r.data = data
	if r.storage == "" {
		r.storage = (&url.URL{Scheme: "file", Path: filepath.ToSlash(filepath.Join(data, "storage"))}).String()
	}
	return nil
}

// stateDir is systemd's StateDirectory, or else as the XDG base directory
// specification has it.
func stateDir(getenv func(string) string) string {
	if dir := getenv("STATE_DIRECTORY"); dir != "" {
		return dir
	}
	if dir := getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "nstance-server")
	}
	if home := getenv("HOME"); home != "" {
		return filepath.Join(home, ".local", "state", "nstance-server")
	}
	return ""
}

// source returns where the configuration is.
func (r *running) source(store storage.Store) (server.Source, error) {
	if r.config != "" {
		return server.FileSource(r.config), nil
	}
	if r.shard == "" {
		return nil, nstance.FieldError("--config", "name a file, or name the shard with --shard if its configuration is in storage", "is not given")
	}
	shard := nstance.ShardID(r.shard)
	if err := validate.Shard("--shard", shard); err != nil {
		return nil, err
	}
	return server.StoreSource(store, shard), nil
}

// configuration reads what tells which provider the server needs.
func (r *running) configuration(ctx context.Context, source server.Source) (*config.Config, error) {
	name, data, err := source(ctx)
	if err != nil {
		return nil, err
	}
	conf, err := config.Parse(name, data, r.parts.Kinds...)
	if err != nil {
		return nil, err
	}
	if r.shard != "" && nstance.ShardID(r.shard) != conf.Shard.ID {
		return nil, nstance.FieldError("shard.id", "use the right file, or leave --shard out", "%s is for shard %s, not %.64s", name, conf.Shard.ID, r.shard)
	}
	return conf, nil
}
