package server

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage/cache"
)

// journalCache is the journal of this server.
type journalCache struct {
	*cache.Cache
	tempDir string // removed with it; empty: none
	log     *slog.Logger
}

// openJournal opens the journal at path or, if that is empty, a temporary one.
func openJournal(path string, interval time.Duration, log *slog.Logger) (j *journalCache, err error) {
	j = &journalCache{log: log}
	if path == "" {
		if j.tempDir, err = os.MkdirTemp("", "nstance-server-"); err != nil {
			return nil, nstance.Errorf(nstance.Unavailable, "journal: %w", err)
		}
		path = filepath.Join(j.tempDir, "journal.db")
	}
	j.Cache, err = cache.Open(path, &cache.Options{Interval: interval, Log: log})
	return j, err
}

// run writes events until ctx ends.
func (j *journalCache) run(ctx context.Context) {
	if err := j.Run(ctx); err != nil {
		j.log.Error("journal stopped", "err", err)
	}
}

func (j *journalCache) close() {
	err := j.Close()
	if j.tempDir != "" {
		err = errors.Join(err, os.RemoveAll(j.tempDir))
	}
	if err != nil {
		j.log.Warn("journal not closed cleanly", "err", err)
	}
}
