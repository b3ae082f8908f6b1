package server_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent/files"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
)

// A taker is an agent that takes files by hand.
type taker struct {
	*talk
	key   ed25519.PrivateKey
	cert  []byte // that it has for its key
	have  []nstance.FileStatus
	hash  string
	data  map[string][]byte // contents received, by digest
	asked int               // for keys
}

func (k *talk) taker() *taker { return &taker{talk: k, key: pki.NewKey(), data: map[string][]byte{}} }

// tell reports, and waits until that is acknowledged. What the server says about
// files meanwhile is still to be heard.
func (k *taker) tell() {
	k.Helper()
	k.answered(k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: k.report()}}))
}

func (k *taker) report() *apiv1.HealthReport {
	r := &apiv1.HealthReport{Version: nstance.ReportVersion, ConfigHash: k.hash}
	for _, f := range k.have {
		r.Files = append(r.Files, &apiv1.FileStatus{Path: f.Path, Digest: f.Digest, Error: f.Error})
	}
	return r
}

// awaits returns the next message about files that is of a kind.
func (k *taker) awaits(of func(*apiv1.ConnectResponse) bool) *apiv1.ConnectResponse {
	k.Helper()
	for {
		m := k.hear()
		switch {
		case m.GetFileKeysRequest() != nil:
			k.asked++
			csr, err := pki.NewCSR(k.key, "x")
			require.NoError(k, err)
			k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FileKeys{FileKeys: &apiv1.FileKeys{
				Keys: []*apiv1.FileKey{{Name: m.GetFileKeysRequest().GetNames()[0], Csr: csr, Certificate: k.cert}},
			}}})
		case m.GetFileChunk() != nil:
			c := m.GetFileChunk()
			require.EqualValues(k, len(k.data[c.GetDigest()]), c.GetOffset())
			k.data[c.GetDigest()] = append(k.data[c.GetDigest()], c.GetData()...)
		}
		if of(m) {
			return m
		}
	}
}

func isBegin(m *apiv1.ConnectResponse) bool  { return m.GetFilesBegin() != nil }
func isKeys(m *apiv1.ConnectResponse) bool   { return m.GetFileKeysRequest() != nil }
func isCommit(m *apiv1.ConnectResponse) bool { return m.GetFilesCommit() != nil }

func (k *taker) wants(hash string, digests ...string) {
	k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FilesWanted{FilesWanted: &apiv1.FilesWanted{Hash: hash, Digests: digests}}})
}

// takes receives a set as an agent does, and returns the digests that it lacked.
func (k *taker) takes() (begin *apiv1.FilesBegin, lacked []string) {
	k.Helper()
	begin = k.awaits(isBegin).GetFilesBegin()
	return begin, k.finishes(begin)
}

func (k *taker) finishes(begin *apiv1.FilesBegin) (lacked []string) {
	k.Helper()
	var have []nstance.FileStatus
	complete := true
	for _, f := range begin.GetFiles() {
		complete = complete && f.GetError() == ""
		have = append(have, nstance.FileStatus{Path: f.GetPath(), Digest: f.GetDigest(), Error: f.GetError()})
		if held := slices.ContainsFunc(k.have, func(h nstance.FileStatus) bool { return h.Digest == f.GetDigest() }); !held && f.GetError() == "" {
			lacked = append(lacked, f.GetDigest())
		}
	}
	k.wants(begin.GetHash(), lacked...)
	require.Equal(k, begin.GetHash(), k.awaits(isCommit).GetFilesCommit().GetHash())
	for _, f := range begin.GetFiles() {
		if data, ok := k.data[f.GetDigest()]; ok {
			require.Equal(k, f.GetDigest(), files.Digest(data))
			require.EqualValues(k, f.GetSize(), len(data))
		}
	}
	if k.have = have; complete {
		k.hash = begin.GetHash()
	}
	m := &apiv1.FilesApplied{Hash: begin.GetHash()}
	for _, f := range have {
		m.Files = append(m.Files, &apiv1.FileStatus{Path: f.Path, Digest: f.Digest, Error: f.Error})
	}
	k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FilesApplied{FilesApplied: m}})
	return lacked
}

// quiet checks that nothing more is said about files.
func (k *taker) quiet() {
	k.Helper()
	for range 3 {
		k.acked(k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: k.report()}}))
	}
	for len(k.heard) > 0 {
		m := k.hear()
		require.Nil(k, m.GetFilesBegin())
		require.Nil(k, m.GetFileKeysRequest())
	}
}

// has checks the content of the machine's only file.
func (k *taker) has(content string) {
	k.Helper()
	require.Len(k, k.have, 1)
	require.Equal(k, content, string(k.data[k.have[0].Digest]))
}

// leaf returns the certificate in a set's first file.
func (k *taker) leaf(begin *apiv1.FilesBegin) *x509.Certificate {
	k.Helper()
	certs, err := pki.ParseCertificates(k.data[begin.GetFiles()[0].GetDigest()])
	require.NoError(k, err)
	return certs[0]
}
