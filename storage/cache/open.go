package cache

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"modernc.org/sqlite"

	"github.com/nstance-go/nstance"
)

// schemaVersion is the file's user_version. A file of another version is set
// aside, not converted: it is a cache.
const schemaVersion = 1

const schema = `
CREATE TABLE events (
	seq      INTEGER PRIMARY KEY AUTOINCREMENT,
	tenant   TEXT NOT NULL,
	grp      TEXT NOT NULL,
	instance TEXT NOT NULL,
	body     TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_group ON events (grp, tenant, seq);
CREATE INDEX events_by_instance ON events (instance, seq) WHERE instance <> '';
CREATE TABLE reports (
	instance TEXT PRIMARY KEY,
	at       INTEGER NOT NULL,
	body     TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX reports_by_age ON reports (at);
`

// Open opens the cache at path, and makes it where there is none. A file that
// is damaged, or of another version, is renamed to path.corrupt (replacing an
// earlier one), logged and named by Rebuilt; an empty cache takes its place.
// Fails with Denied when the path cannot be written, Unavailable when the file
// system fails in another way.
func Open(path string, o *Options) (*Cache, error) {
	opts := o.orDefaults()
	path, err := filepath.Abs(path)
	if err == nil {
		err = touch(path)
	}
	if err != nil {
		return nil, pathError(path, err)
	}
	c, err := openFile(path, opts)
	if err == nil || !unusable(err) {
		return c, err
	}
	aside := path + ".corrupt"
	opts.Log.Warn("cache set aside and rebuilt", "path", path, "aside", aside, "err", err)
	if err := setAside(path, aside); err != nil {
		return nil, pathError(path, err)
	}
	if c, err = openFile(path, opts); err != nil {
		return nil, err
	}
	c.rebuilt = aside
	return c, nil
}

// touch makes sure that the file can be written, and is readable by its owner
// only: SQLite gives its other files the same mode.
func touch(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func pathError(path string, err error) error {
	out := &nstance.Error{
		Code: nstance.Unavailable, Field: "cache", Msg: fmt.Sprintf("open %s: %v", path, err), Err: err,
		Remedy: "name a file in a directory that this program's user may write",
	}
	if errors.Is(err, fs.ErrPermission) {
		out.Code = nstance.Denied
	}
	return out
}

func openFile(path string, opts Options) (*Cache, error) {
	c := &Cache{
		opts: opts, reports: reports{},
		wake: make(chan struct{}, 1), full: make(chan struct{}, 1),
	}
	var err error
	if c.write, err = sql.Open("sqlite", dsn(path, "_txlock=immediate")); err != nil {
		return nil, pathError(path, err)
	}
	c.write.SetMaxOpenConns(1)
	if c.read, err = sql.Open("sqlite", dsn(path, "_pragma=query_only(1)")); err != nil {
		return nil, errors.Join(pathError(path, err), c.write.Close())
	}
	c.read.SetMaxOpenConns(4)
	if err := prepare(c.write); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), c.Close())
	}
	return c, nil
}

// dsn sets what every connection needs: a write-ahead log, so that readers and
// the writer do not wait for one another, and no sync per transaction, since a
// power cut may cost the last events but never the file.
// See https://www.sqlite.org/wal.html and https://www.sqlite.org/pragma.html#pragma_synchronous.
func dsn(path, more string) string {
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(path)}
	u.RawQuery = fmt.Sprintf("_pragma=busy_timeout(%d)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&%s", busy.Milliseconds(), more)
	return u.String()
}

var errOtherVersion = errors.New("the file has another version")

// prepare checks the file, and fills a new one.
func prepare(db *sql.DB) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var version, objects int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return classify(err)
	}
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&objects); err != nil {
		return classify(err)
	}
	switch {
	case version == 0 && objects == 0:
		_, err := db.ExecContext(ctx, fmt.Sprintf("BEGIN; %s PRAGMA user_version = %d; COMMIT", schema, schemaVersion))
		return classify(err)
	case version != schemaVersion:
		return errOtherVersion
	}
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return classify(err)
	}
	if verdict != "ok" {
		return errDamaged
	}
	return nil
}

var errDamaged = errors.New("the file is damaged")

// Primary result codes, https://www.sqlite.org/rescode.html.
const (
	codeCorrupt = 11
	codeNotADB  = 26
)

// unusable reports whether the file's content is at fault.
func unusable(err error) bool {
	if errors.Is(err, errOtherVersion) || errors.Is(err, errDamaged) {
		return true
	}
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code()&0xff == codeCorrupt || e.Code()&0xff == codeNotADB)
}

// classify gives an error of SQLite its code.
func classify(err error) error {
	if err == nil {
		return nil
	}
	return nstance.Errorf(nstance.Unavailable, "cache: %w", err)
}

func setAside(path, aside string) error {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		err := os.Rename(path+suffix, aside+suffix)
		if errors.Is(err, fs.ErrNotExist) {
			err = os.Remove(aside + suffix)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return touch(path)
}
