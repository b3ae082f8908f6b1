package server

import (
	"log/slog"
	"net"

	"github.com/nstance-go/nstance"
)

// Access is the table of who may call what.
func Access() map[string][]nstance.Role { return access }

// NewPatient is how every port listens.
func NewPatient(lis net.Listener, log *slog.Logger) net.Listener { return newPatient(lis, log) }
