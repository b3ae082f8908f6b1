package dirwatch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"syscall"
)

// A Change is one change of a name.
type Change string

// The kinds of changes.
const (
	Made    Change = "made"    // created in place
	Removed Change = "removed" // deleted, or renamed to something else
	Moved   Change = "moved"   // renamed to this name, which replaces what had it
	Written Change = "written" // its content changed in place
)

var masks = []struct {
	mask   uint32
	change Change
}{
	{syscall.IN_CREATE, Made}, {syscall.IN_DELETE, Removed}, {syscall.IN_MOVED_FROM, Removed},
	{syscall.IN_MOVED_TO, Moved}, {syscall.IN_MODIFY, Written},
}

// A Watch collects the changes of one directory.
type Watch struct{ fd int }

// New begins to watch a directory.
func New(dir string) (*Watch, error) {
	fd, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	var all uint32
	for _, m := range masks {
		all |= m.mask
	}
	if _, err := syscall.InotifyAddWatch(fd, dir, all); err != nil {
		_ = syscall.Close(fd)
		return nil, fmt.Errorf("inotify %s: %w", dir, err)
	}
	return &Watch{fd}, nil
}

// Close ends the watch.
func (w *Watch) Close() error { return syscall.Close(w.fd) }

// Of returns what became of a name, in order, since New or the last call, and
// forgets what became of other names. Writes in a row are one: the kernel joins
// them or not.
func (w *Watch) Of(name string) (changes []Change, err error) {
	buf := make([]byte, 64<<10)
	for {
		n, err := syscall.Read(w.fd, buf)
		if err == syscall.EAGAIN || n == 0 && err == nil {
			return joinWrites(changes), nil
		}
		if err != nil {
			return changes, fmt.Errorf("inotify: %w", err)
		}
		for rest := buf[:n]; len(rest) >= syscall.SizeofInotifyEvent; {
			mask := binary.NativeEndian.Uint32(rest[4:])
			size := syscall.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(rest[12:]))
			if string(bytes.TrimRight(rest[syscall.SizeofInotifyEvent:size], "\x00")) == name {
				for _, m := range masks {
					if mask&m.mask != 0 {
						changes = append(changes, m.change)
					}
				}
			}
			rest = rest[size:]
		}
	}
}

func joinWrites(changes []Change) []Change {
	return slices.CompactFunc(changes, func(a, b Change) bool { return a == Written && b == Written })
}
