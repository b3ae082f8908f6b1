package pki_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/hex"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
)

// meet connects the two in memory and returns what either side makes of it.
func meet(t *testing.T, client, server *tls.Config) (c, s tls.ConnectionState) {
	t.Helper()
	left, right := net.Pipe()
	defer left.Close()
	defer right.Close()
	served := make(chan error, 1)
	theirs := tls.Server(right, server)
	go func() { served <- theirs.HandshakeContext(t.Context()) }()
	ours := tls.Client(left, client)
	require.NoError(t, ours.HandshakeContext(t.Context()))
	require.NoError(t, <-served)
	return ours.ConnectionState(), theirs.ConnectionState()
}

func TestRecovery(t *testing.T) {
	ca := newAuthority(t)
	client := pki.ClientTLS(ca.pool(t), nil, "a", "prod")
	server := pki.RegistrationTLS(serve(ca.pair(t, serverLeaf())))
	c, s := meet(t, client, server)
	binding, err := pki.ChannelBinding(c)
	require.NoError(t, err)

	t.Run("both ends of a connection have the same binding, and no other has", func(t *testing.T) {
		theirs, err := pki.ChannelBinding(s)
		require.NoError(t, err)
		require.Equal(t, binding, theirs)
		require.Len(t, binding, 32)
		again, _ := meet(t, client, server)
		other, err := pki.ChannelBinding(again)
		require.NoError(t, err)
		require.NotEqual(t, binding, other)
	})
	t.Run("there is none without TLS 1.3", func(t *testing.T) {
		_, err := pki.ChannelBinding(tls.ConnectionState{})
		require.ErrorIs(t, err, nstance.Invalid)
		old := server.Clone()
		old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		both := client.Clone()
		both.MinVersion = tls.VersionTLS12
		state, _ := meet(t, both, old)
		_, err = pki.ChannelBinding(state)
		require.ErrorIs(t, err, nstance.Invalid)
	})
	t.Run("a proof is good for its key, connection and request only", func(t *testing.T) {
		key, csr := pki.NewKey(), []byte("request")
		pub, other := key.Public().(ed25519.PublicKey), pki.NewKey().Public().(ed25519.PublicKey)
		proof := pki.ProveRecovery(key, binding, csr)
		require.NoError(t, pki.VerifyRecovery(pub, binding, csr, proof))
		require.ErrorIs(t, pki.VerifyRecovery(other, binding, csr, proof), nstance.Denied)
		require.ErrorIs(t, pki.VerifyRecovery(nil, binding, csr, proof), nstance.Denied)
		require.ErrorIs(t, pki.VerifyRecovery(pub, bytes.Repeat([]byte{1}, 32), csr, proof), nstance.Denied)
		require.ErrorIs(t, pki.VerifyRecovery(pub, binding, []byte("another"), proof), nstance.Denied)
		require.ErrorIs(t, pki.VerifyRecovery(pub, binding, csr, nil), nstance.Denied)
		require.ErrorIs(t, pki.VerifyRecovery(pub, nil, csr, pki.ProveRecovery(key, nil, csr)), nstance.Denied, "without a binding there is no connection")
	})
	t.Run("what is signed does not change by accident", func(t *testing.T) {
		key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
		require.Equal(t, "dbc5d0e7f1798a968342efc7928f047876dcda1ba633f28c1bea834b4136d675a14ee53c22206e1190ad34720fd25d78a950a1e78bdf807c687f89e7bfc0b70f", hex.EncodeToString(pki.ProveRecovery(key, make([]byte, 32), []byte("request"))))
	})
}
