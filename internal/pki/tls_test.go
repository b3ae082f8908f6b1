package pki_test

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
)

func (a authority) pair(t testing.TB, l leaf) *tls.Certificate {
	key := pki.NewKey()
	pair, err := pki.Pair(key, a.issue(t, l, key.Public().(ed25519.PublicKey)))
	require.NoError(t, err)
	return pair
}

// handshake connects the two over loopback, sends one byte each way, and
// returns what either side says about it.
func handshake(t testing.TB, client, server *tls.Config) (clientErr, serverErr error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()

	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		conn, err := ln.Accept()
		if err != nil {
			serverErr = err
			return
		}
		defer conn.Close()
		serverErr = echo(tls.Server(conn, server))
	})
	conn, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	c := tls.Client(conn, client)
	if _, clientErr = c.Write([]byte{1}); clientErr == nil {
		_, clientErr = io.ReadFull(c, make([]byte, 1))
	}
	conn.Close()
	wg.Wait()
	return clientErr, serverErr
}

func echo(conn *tls.Conn) error {
	b := make([]byte, 1)
	if _, err := io.ReadFull(conn, b); err != nil {
		return err
	}
	_, err := conn.Write(b)
	return err
}

func serve(pair *tls.Certificate) func() (*tls.Certificate, error) {
	return func() (*tls.Certificate, error) { return pair, nil }
}

func TestClientAcceptsAServer(t *testing.T) {
	ca := newAuthority(t)
	for name, tc := range map[string]struct {
		change func(*leaf)
		ca     authority
		says   string // of the refusal; empty: accepted
	}{
		"by its chain, use, role and name": {ca: ca},
		"never with another chain":         {ca: newAuthority(t), says: "unknown authority"},
		"never with another shard's name":  {ca: ca, change: func(l *leaf) { l.dns = []string{pki.ServerName("b", "prod")} }, says: "not server.a.prod"},
		"never without a name":             {ca: ca, change: func(l *leaf) { l.dns = nil }, says: "name"},
		"never by its address":             {ca: ca, change: func(l *leaf) { l.dns = []string{"localhost"} }, says: "not server.a.prod"},
		"never for client use":             {ca: ca, change: func(l *leaf) { l.use = x509.ExtKeyUsageClientAuth }, says: "key usage"},
		"never without a role":             {ca: ca, change: func(l *leaf) { l.role = "" }, says: "no role"},
		"never with another role":          {ca: ca, change: func(l *leaf) { l.role = nstance.RoleAdmin }, says: "role admin"},
		"never when expired":               {ca: ca, change: func(l *leaf) { l.expired = true }, says: "expired"},
	} {
		t.Run(name, func(t *testing.T) {
			l := serverLeaf()
			if tc.change != nil {
				tc.change(&l)
			}
			clientErr, _ := handshake(t, pki.ClientTLS(ca.pool(t), nil, "a", "prod"), pki.RegistrationTLS(serve(tc.ca.pair(t, l))))
			if tc.says == "" {
				require.NoError(t, clientErr)
				return
			}
			require.ErrorContains(t, clientErr, tc.says)
		})
	}
	t.Run("never without roots", func(t *testing.T) {
		require.NotNil(t, pki.ClientTLS(nil, nil, "a", "prod").RootCAs, "nil would mean the system's roots")
		clientErr, _ := handshake(t, pki.ClientTLS(nil, nil, "a", "prod"), pki.RegistrationTLS(serve(ca.pair(t, serverLeaf()))))
		require.ErrorContains(t, clientErr, "unknown authority")
	})
}

func TestServerAcceptsAClient(t *testing.T) {
	ca := newAuthority(t)
	for name, tc := range map[string]struct {
		change func(*leaf)
		ca     *authority // nil: the client shows nothing
		says   string
	}{
		"by its chain, use and role": {ca: &ca},
		"never without certificate":  {says: "didn't provide a certificate"},
		"never with another chain":   {ca: new(newAuthority(t)), says: "unknown authority"},
		"never for server use":       {ca: &ca, change: func(l *leaf) { l.use = x509.ExtKeyUsageServerAuth }, says: "key usage"},
		"never without a role":       {ca: &ca, change: func(l *leaf) { l.role = "" }, says: "no role"},
		"never with another role":    {ca: &ca, change: func(l *leaf) { l.role = nstance.RoleOperator }, says: "role operator"},
		"never when expired":         {ca: &ca, change: func(l *leaf) { l.expired = true }, says: "expired"},
	} {
		t.Run(name, func(t *testing.T) {
			var pair *tls.Certificate
			if tc.ca != nil {
				l := agentLeaf()
				if tc.change != nil {
					tc.change(&l)
				}
				pair = tc.ca.pair(t, l)
			}
			server := pki.ServerTLS(serve(ca.pair(t, serverLeaf())), ca.pool(t), nstance.RoleAgent)
			clientErr, serverErr := handshake(t, pki.ClientTLS(ca.pool(t), pair, "a", "prod"), server)
			if tc.says == "" {
				require.NoError(t, clientErr)
				require.NoError(t, serverErr)
				return
			}
			require.Error(t, clientErr)
			require.ErrorContains(t, serverErr, tc.says)
		})
	}
	t.Run("never when it trusts no authority", func(t *testing.T) {
		server := pki.ServerTLS(serve(ca.pair(t, serverLeaf())), nil, nstance.RoleAgent)
		require.NotNil(t, server.ClientCAs, "nil would mean the system's roots")
		_, serverErr := handshake(t, pki.ClientTLS(ca.pool(t), ca.pair(t, agentLeaf()), "a", "prod"), server)
		require.ErrorContains(t, serverErr, "unknown authority")
	})
}

func peerLeaf() leaf {
	l := serverLeaf()
	l.change = func(c *x509.Certificate) { c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth) }
	return l
}

func TestServerAcceptsAPeer(t *testing.T) {
	ca := newAuthority(t)
	for name, tc := range map[string]struct {
		change func(*leaf)
		ca     *authority // nil: the client shows nothing
		says   string
	}{
		"by its chain, use, role and name":     {ca: &ca},
		"never without certificate":            {says: "didn't provide a certificate"},
		"never with another chain":             {ca: new(newAuthority(t)), says: "unknown authority"},
		"never for server use only":            {ca: &ca, change: func(l *leaf) { l.change = nil }, says: "key usage"},
		"never of another shard":               {ca: &ca, change: func(l *leaf) { l.dns = []string{pki.ServerName("b", "prod")} }, says: "no server of this shard"},
		"never of another cluster":             {ca: &ca, change: func(l *leaf) { l.dns = []string{pki.ServerName("a", "test")} }, says: "no server of this shard"},
		"never without a name":                 {ca: &ca, change: func(l *leaf) { l.dns = nil }, says: "no server of this shard"},
		"never an agent, whatever it is named": {ca: &ca, change: func(l *leaf) { l.role, l.name = nstance.RoleAgent, agentID }, says: "role agent"},
		"never an administrator":               {ca: &ca, change: func(l *leaf) { l.role = nstance.RoleAdmin }, says: "role admin"},
	} {
		t.Run(name, func(t *testing.T) {
			var pair *tls.Certificate
			if tc.ca != nil {
				l := peerLeaf()
				if tc.change != nil {
					tc.change(&l)
				}
				pair = tc.ca.pair(t, l)
			}
			server := pki.PeerTLS(serve(ca.pair(t, serverLeaf())), ca.pool(t), "a", "prod")
			clientErr, serverErr := handshake(t, pki.ClientTLS(ca.pool(t), pair, "a", "prod"), server)
			if tc.says == "" {
				require.NoError(t, clientErr)
				require.NoError(t, serverErr)
				return
			}
			require.Error(t, clientErr)
			require.ErrorContains(t, serverErr, tc.says)
		})
	}
	t.Run("never at the port of others", func(t *testing.T) {
		server := pki.ServerTLS(serve(ca.pair(t, serverLeaf())), ca.pool(t), nstance.RoleAgent, nstance.RoleOperator, nstance.RoleAdmin)
		_, serverErr := handshake(t, pki.ClientTLS(ca.pool(t), ca.pair(t, peerLeaf()), "a", "prod"), server)
		require.ErrorContains(t, serverErr, "role server")
	})
}

func TestOnlyTLS13(t *testing.T) {
	ca := newAuthority(t)
	server := pki.RegistrationTLS(serve(ca.pair(t, serverLeaf())))
	client := pki.ClientTLS(ca.pool(t), nil, "a", "prod")
	t.Run("the server refuses 1.2", func(t *testing.T) {
		old := client.Clone()
		old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		_, serverErr := handshake(t, old, server)
		require.ErrorContains(t, serverErr, "unsupported versions")
	})
	t.Run("the client refuses 1.2", func(t *testing.T) {
		old := server.Clone()
		old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		clientErr, _ := handshake(t, client, old)
		require.ErrorContains(t, clientErr, "protocol version")
	})
}

func TestServerCertificateIsAskedForAtEachHandshake(t *testing.T) {
	ca := newAuthority(t)
	asked, pair := 0, ca.pair(t, serverLeaf())
	server := pki.RegistrationTLS(func() (*tls.Certificate, error) { asked++; return pair, nil })
	for range 2 {
		clientErr, _ := handshake(t, pki.ClientTLS(ca.pool(t), nil, "a", "prod"), server)
		require.NoError(t, clientErr)
	}
	require.Equal(t, 2, asked)
}

// A resumed session would outlive the check of the chain.
func TestNoSessionIsResumed(t *testing.T) {
	ca := newAuthority(t)
	server := pki.RegistrationTLS(serve(ca.pair(t, serverLeaf())))
	for name, cfg := range map[string]*tls.Config{"registration": server, "changing": pki.Changing(func() *tls.Config { return server.Clone() })} {
		t.Run(name, func(t *testing.T) {
			client := pki.ClientTLS(ca.pool(t), nil, "a", "prod")
			client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
			client.NextProtos = []string{"h2"}
			check, resumed := client.VerifyConnection, false
			client.VerifyConnection = func(state tls.ConnectionState) error {
				resumed = resumed || state.DidResume
				if name == "changing" && state.NegotiatedProtocol != "h2" {
					return errors.New("no h2")
				}
				return check(state)
			}
			for range 2 {
				clientErr, serverErr := handshake(t, client, cfg)
				require.NoError(t, clientErr)
				require.NoError(t, serverErr)
			}
			require.False(t, resumed)
		})
	}
}
