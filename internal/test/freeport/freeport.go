// Package freeport finds addresses for programs that must be told theirs.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
)

// Ports are taken from below those that kernels give to sockets without one of their own:
// a port that was found free stays so until its program has started, whatever else opens
// sockets meanwhile.
const (
	first = 10_000
	count = 22_000
)

var (
	begin = rand.Uint32() // processes begin at different ports
	tried atomic.Uint32   // by this one
)

// Address returns host and port of the loopback interface that nothing listens at. It
// returns each once.
func Address() (string, error) {
	l, err := Listen()
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// Listen listens at such an address: after its Close, connections to it are refused.
func Listen() (net.Listener, error) {
	var all error
	for range 100 {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+int((begin+tried.Add(1))%count))))
		if err == nil {
			return l, nil
		}
		all = errors.Join(all, err)
	}
	return nil, all
}
