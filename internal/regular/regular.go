// Package regular reads files that others can replace: a pipe in the place of one is not waited
// for, and what has no end is not read.
package regular

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/nstance-go/nstance"
)

// Open is os.OpenFile, or the method of an os.Root.
type Open func(name string, flag int, mode fs.FileMode) (*os.File, error)

// Err is the error about what is no regular file.
var Err = errors.New("is not a regular file")

// Read reads a regular file of at most limit bytes. Fails with [Err], Invalid for one that is
// longer, and open's error.
func (open Open) Read(name string, limit int64) ([]byte, error) {
	f, err := open(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // which opens a pipe without a writer too
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s %w", f.Name(), Err)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = nstance.Errorf(nstance.Invalid, "%s has more than %d bytes", f.Name(), limit)
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// File reads a file of the system, as [Open.Read] does.
func File(name string, limit int64) ([]byte, error) { return Open(os.OpenFile).Read(name, limit) }
