package ports

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"math/big"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
)

// A door makes handshakes behind a gate.
type door struct {
	*testing.T
	gate  *Gate
	log   *bytes.Buffer
	creds credentials.TransportCredentials
}

func newDoor(t *testing.T) *door {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	name := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"door"}}
	der, err := x509.CreateCertificate(rand.Reader, name, name, key.Public(), key)
	require.NoError(t, err)
	cert := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	log := &bytes.Buffer{}
	return &door{
		T: t, log: log, gate: NewGate(config.Connections{Max: 1000, Anonymous: 1000, PerSource: 1000, PerClient: 1000}, slog.New(slog.NewTextHandler(log, nil))),
		creds: Closable(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}}), nil),
	}
}

// shake begins a handshake from a source, whose error is sent, and returns the client's end. The
// server calls onAnswer before its first answer.
func (d *door) shake(from net.Addr, onAnswer ...func()) (client net.Conn, result chan error) {
	client, server := net.Pipe()
	result = make(chan error, 1)
	conn := d.gate.admit(&sourced{server, from, onAnswer}, time.Hour)
	go func() {
		shaken, _, err := d.creds.ServerHandshake(conn)
		if err != nil {
			_ = conn.Close()
		} else {
			d.Cleanup(func() { _ = shaken.Close() })
		}
		result <- err
	}()
	d.Cleanup(func() { _ = client.Close(); _ = conn.Close() })
	return client, result
}

// sourced is a connection from an address.
type sourced struct {
	net.Conn
	from     net.Addr
	onAnswer []func()
}

func (s *sourced) RemoteAddr() net.Addr { return s.from }

func (s *sourced) Write(p []byte) (int, error) {
	for _, answer := range s.onAnswer {
		answer()
	}
	s.onAnswer = nil
	return s.Conn.Write(p)
}

var (
	one     = &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}
	another = &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2)}
)

// busy takes all turns, and returns what gives one back each time.
func (d *door) busy() (free func()) {
	var releases []func()
	for range 8 * runtime.GOMAXPROCS(0) {
		release, err := d.gate.turns.Acquire(d.Context(), "")
		require.NoError(d, err)
		releases = append(releases, release)
	}
	return func() { releases[0](); releases = releases[1:] }
}

func handshake(client net.Conn) error {
	return tls.Client(client, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).Handshake() //nolint:gosec // the test is about turns
}

// TestTurns: a few handshakes compute at once. Others wait for a while, and are given up before
// their clients give up.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t)
		free := d.busy()
		client, result := d.shake(one)
		began := time.Now()
		require.Error(t, handshake(client))
		require.ErrorIs(t, <-result, nstance.Unavailable)
		require.Equal(t, turnWait, time.Since(began))
		require.Equal(t, 1, strings.Count(d.log.String(), "connections closed or refused"))

		client, result = d.shake(one)
		time.AfterFunc(time.Second, free)
		began = time.Now()
		require.NoError(t, handshake(client))
		require.NoError(t, <-result)
		require.Equal(t, time.Second, time.Since(began))
		release, err := d.gate.turns.Acquire(t.Context(), "")
		require.NoError(t, err, "its turn is over")
		release()
	})
}

// TestAnsweredHandshakesGoFirst: what the server has answered is completed without a turn.
func TestAnsweredHandshakesGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t)
		client, result := d.shake(one, func() {
			go d.busy() // its last turn is that of this handshake
			synctest.Wait()
		})
		began := time.Now()
		require.NoError(t, handshake(client))
		require.NoError(t, <-result)
		require.Zero(t, time.Since(began))
	})
}

// TestSourcesTakeTurns: clients of one address keep those of another waiting for one handshake
// at most.
func TestSourcesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t)
		free := d.busy()
		var answered []net.Addr
		begin := func(from net.Addr) {
			client, _ := d.shake(from, func() { answered = append(answered, from) })
			go func() { _ = handshake(client) }()
			synctest.Wait()
		}
		for range 50 {
			begin(one)
		}
		begin(another)
		free() // one turn, and who has it answers
		synctest.Wait()
		require.Len(t, answered, 51)
		require.Contains(t, answered[:2], net.Addr(another))
	})
}

// TestOneTurnForOneHello: what a client sends at once is read in one turn, however it is read.
func TestOneTurnForOneHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t)
		free := d.busy()
		client, server := net.Pipe()
		defer client.Close()
		defer server.Close()
		conn := newShaking(d.gate.admit(&sourced{Conn: server, from: one}, time.Hour))
		go func() { _, _ = client.Write(make([]byte, 1000)) }()
		free()
		_, err := io.ReadFull(conn, make([]byte, 5))
		require.NoError(t, err)
		var next bool
		go func() {
			release, err := d.gate.turns.Acquire(t.Context(), "")
			next = err == nil
			release()
		}()
		synctest.Wait()
		_, err = io.ReadFull(conn, make([]byte, 995))
		require.NoError(t, err)
		synctest.Wait()
		require.False(t, next, "the hello has its turn still")
		conn.end()
		synctest.Wait()
		require.True(t, next)
	})
}

// TestSilentClientsHaveNoTurn: clients that stop anywhere in their handshakes do not delay others.
func TestSilentClientsHaveNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t)
		hello := &recorded{}
		_ = handshake(hello)
		for sent := range len(hello.sent) + 1 {
			if sent%100 > 2 && sent < len(hello.sent) {
				continue
			}
			client, _ := d.shake(one)
			go func() {
				_, _ = client.Write(hello.sent[:sent])
				buf := make([]byte, 1<<20)
				_, _ = client.Read(buf) // the answer, and nothing follows
			}()
		}
		synctest.Wait()
		began := time.Now()
		client, result := d.shake(one)
		require.NoError(t, handshake(client))
		require.NoError(t, <-result)
		require.Zero(t, time.Since(began))
	})
}

// recorded keeps what is written to it.
type recorded struct {
	net.Conn
	sent []byte
}

func (r *recorded) Write(p []byte) (int, error) { r.sent = append(r.sent, p...); return len(p), nil }
func (r *recorded) Read([]byte) (int, error)    { return 0, net.ErrClosed }
