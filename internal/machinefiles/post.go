package machinefiles

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nstance-go/nstance/internal/command"
)

// maxOutput is how much of a command's output is reported, in bytes.
const maxOutput = 160

// Run runs the command of the set in use if it is pending. The command runs in the
// receive directory, whose path is in NSTANCE_RECV_DIR. A command that fails runs
// again with the next call.
func (s *Store) Run(ctx context.Context) error {
	s.mu.Lock()
	argv, pending, version := s.inUse.Command, s.pending, s.version
	s.mu.Unlock()
	if !pending || len(argv) == 0 {
		return nil
	}
	dir, err := filepath.Abs(s.o.Dir)
	if err != nil {
		return classify(err)
	}
	limited, cancel := context.WithTimeoutCause(ctx, s.o.CommandTimeout, fmt.Errorf("it ran for %v", s.o.CommandTimeout))
	defer cancel()
	c := command.Command{Argv: argv, Dir: dir, Env: append(os.Environ(), "NSTANCE_RECV_DIR="+dir), MaxOutput: maxOutput}
	err = c.Run(limited)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("the files are in place, but %s: %w", argv[0], err)
		s.commandError = err.Error()
		return err
	}
	s.commandError = ""
	if s.version == version && s.root != nil {
		s.pending = false
		return classify(s.root.Remove(versionDir(version) + "/" + filePending))
	}
	return nil
}
