//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package storage

import (
	"errors"
	"fmt"
	"os"
)

// tryLock refuses: a store whose lock does not hold would lose writes.
func tryLock(*os.File, bool) (bool, error) {
	return false, fmt.Errorf("the directory store needs flock, which is missing on this system: %w", errors.ErrUnsupported)
}

func treeOf(string) tree { return ownTree{} }

func ownerOf(os.FileInfo) (uid, gid int) { return 0, 0 }

func isNotDir(error) bool   { return false }
func isDir(error) bool      { return false }
func isReadOnly(error) bool { return false }
func isFull(error) bool     { return false }
