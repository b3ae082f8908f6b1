package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"modernc.org/sqlite"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
)

// schemaVersion is the file's user_version. A file of another version is set
// aside, not converted: it is a sqlite.
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
`

// indexes are made in older files too. What one tenant asks for must not cost a look at
// the events of all others.
const indexes = `
CREATE INDEX IF NOT EXISTS events_by_tenant ON events (tenant, seq);
CREATE INDEX IF NOT EXISTS events_by_type ON events (tenant, json_extract(body, '$.event'), seq);
CREATE INDEX IF NOT EXISTS events_by_notice ON events (tenant, seq) WHERE json_extract(body, '$.notice.event_id') IS NOT NULL;
`

// Open opens the journal at path, and makes it where there is none. A file that
// is damaged, or of another version, is renamed to path.corrupt (replacing an
// earlier one), logged and named by Rebuilt; an empty journal takes its place.
// Fails with Invalid for an Interval that makes no sense, Denied when the path cannot be written, Unavailable when the file
// system fails in another way. A full file system is no failure: nothing
// is written then until there is space.
func Open(path string, o *Options) (*Journal, error) {
	if o != nil {
		if err := validate.Setting("interval", o.Interval, time.Hour); err != nil {
			return nil, err
		}
	}
	j := &Journal{opts: o.orDefaults(), wake: make(chan struct{}, 1), full: make(chan struct{}, 1)}
	var err error
	if j.path, err = filepath.Abs(path); err != nil {
		return nil, pathError(path, err)
	}
	if j.file, j.rebuilt, err = openAny(j.path, j.opts); err != nil {
		if !storageFull(err) {
			return nil, err
		}
		j.recordOutcome(err)
		signal(j.wake)
	}
	if j.rebuilt != "" {
		j.addNote("the journal's file could not be used, and was kept as %s", j.rebuilt)
	}
	return j, nil
}

// corruptSuffix is appended to the name of a file that cannot be used.
const corruptSuffix = ".corrupt"

// openAny opens the file at path. A file that cannot be used is renamed to the path
// that is returned, and an empty one is made.
func openAny(path string, opts Options) (f *file, rebuilt string, err error) {
	if err := touch(path); err != nil {
		return nil, "", pathError(path, err)
	}
	if f, err = openFile(path); err == nil || !unusable(err) {
		return f, "", err
	}
	rebuilt = path + corruptSuffix
	opts.Log.Warn("damaged journal moved aside and rebuilt", "path", path, "aside", rebuilt, "err", err)
	if err := setAside(path, rebuilt); err != nil {
		return nil, rebuilt, pathError(path, err)
	}
	f, err = openFile(path)
	return f, rebuilt, err
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
		Code: nstance.Unavailable, Field: "journal", Msg: fmt.Sprintf("open %s: %v", path, err), Err: err,
		Remedy: "name a file in a directory that this program's user may write",
	}
	if errors.Is(err, fs.ErrPermission) {
		out.Code = nstance.Denied
	}
	return out
}

func openFile(path string) (_ *file, err error) {
	f := &file{}
	if f.write, err = sql.Open("sqlite", dsn(path, "_txlock=immediate")); err != nil {
		return nil, pathError(path, err)
	}
	f.write.SetMaxOpenConns(1)
	if f.read, err = sql.Open("sqlite", dsn(path, "_pragma=query_only(1)")); err != nil {
		return nil, errors.Join(pathError(path, err), f.write.Close())
	}
	f.read.SetMaxOpenConns(4)
	f.read.SetConnMaxLifetime(readerLife)
	if err = prepare(f.write); err == nil {
		f.was, err = os.Stat(path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), f.close())
	}
	return f, nil
}

// readerLife is how long a connection for reading is used: it caches pages, and
// would not detect later damage of the file.
const readerLife = 5 * time.Second

// dsn sets the options of every connection: a write-ahead log, so that readers and
// the writer do not wait for each other, and no sync per transaction, since a
// power cut may lose the last events but never the file.
// See https://www.sqlite.org/wal.html and https://www.sqlite.org/pragma.html#pragma_synchronous.
func dsn(path, more string) string {
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(path)}
	u.RawQuery = fmt.Sprintf("_pragma=busy_timeout(%d)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&%s", busyTimeout.Milliseconds(), more)
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
		_, err := db.ExecContext(ctx, fmt.Sprintf("BEGIN; %s %s PRAGMA user_version = %d; COMMIT", schema, indexes, schemaVersion))
		return classify(err)
	case version != schemaVersion || objects == 0:
		return errOtherVersion
	}
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return classify(err)
	}
	if verdict != "ok" {
		return errDamaged
	}
	if _, err := db.ExecContext(ctx, indexes); err != nil && !storageFull(err) { // searches are slow meanwhile
		return classify(err)
	}
	return nil
}

var errDamaged = errors.New("the file is damaged")

// Result codes, https://www.sqlite.org/rescode.html.
const (
	codeError     = 1
	codeIO        = 10
	codeCorrupt   = 11
	codeFull      = 13
	codeNotADB    = 26
	codeShortRead = 522 // extends codeIO: the file ends before what it should contain
)

// unusable reports whether the file's content is the cause. SQLite has no checksums: what is
// damaged within an event is found by what reads that.
func unusable(err error) bool {
	if errors.Is(err, errOtherVersion) || errors.Is(err, errDamaged) {
		return true
	}
	code := primaryCode(err)
	return code == codeError && strings.Contains(err.Error(), "malformed JSON") || code == codeCorrupt || code == codeNotADB || resultCode(err) == codeShortRead
}

// storageFull reports whether nothing can be written at present: the disk is full,
// or a quota, or it fails, for which file systems are made read-only.
func storageFull(err error) bool {
	code := primaryCode(err)
	if code == codeFull || code == codeIO && resultCode(err) != codeShortRead {
		return true
	}
	for _, passing := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// primaryCode returns SQLite's result code without what extends it, or 0.
func primaryCode(err error) int { return resultCode(err) & 0xff }

// resultCode returns SQLite's extended result code, or 0.
func resultCode(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code()
	}
	return 0
}

// classify gives an error of SQLite its code.
func classify(err error) error {
	if err == nil {
		return nil
	}
	return nstance.Errorf(nstance.Unavailable, "journal: %w", err)
}

func setAside(path, renamed string) error {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		err := os.Rename(path+suffix, renamed+suffix)
		if errors.Is(err, fs.ErrNotExist) {
			err = os.Remove(renamed + suffix)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return touch(path)
}
