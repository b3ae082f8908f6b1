package server_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/machinefiles"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
)

// A fileAgent is an agent session that receives files step by step.
type fileAgent struct {
	*agentSession
	key            ed25519.PrivateKey
	keyCertificate []byte
	have           []nstance.FileStatus
	hash           string
	receivedData   map[string][]byte // by digest
	keyRequests    int
}

func (k *agentSession) newFileAgent() *fileAgent {
	return &fileAgent{agentSession: k, key: pki.NewKey(), receivedData: map[string][]byte{}}
}

// reportFiles sends a report and waits for its acknowledgement. Messages about files
// stay to be received.
func (k *fileAgent) reportFiles() {
	k.Helper()
	k.awaitAckKeepingOthers(k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: k.healthReport()}}))
}

func (k *fileAgent) healthReport() *apiv1.HealthReport {
	r := &apiv1.HealthReport{Version: wire.ReportVersion, ConfigHash: k.hash}
	for _, f := range k.have {
		r.Files = append(r.Files, &apiv1.FileStatus{Path: f.Path, Digest: f.Digest, Error: f.Error})
	}
	return r
}

// nextFileMessage answers messages about files until one is of a kind.
func (k *fileAgent) nextFileMessage(of func(*apiv1.ConnectResponse) bool) *apiv1.ConnectResponse {
	k.Helper()
	for {
		m := k.nextMessage()
		switch {
		case m.GetFileKeysRequest() != nil:
			k.keyRequests++
			csr, err := pki.NewCSR(k.key, "x")
			require.NoError(k, err)
			k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FileKeys{FileKeys: &apiv1.FileKeys{
				Keys: []*apiv1.FileKey{{Name: m.GetFileKeysRequest().GetNames()[0], Csr: csr, Certificate: k.keyCertificate}},
			}}})
		case m.GetFileChunk() != nil:
			c := m.GetFileChunk()
			require.EqualValues(k, len(k.receivedData[c.GetDigest()]), c.GetOffset())
			k.receivedData[c.GetDigest()] = append(k.receivedData[c.GetDigest()], c.GetData()...)
		}
		if of(m) {
			return m
		}
	}
}

func isBegin(m *apiv1.ConnectResponse) bool  { return m.GetFilesBegin() != nil }
func isKeys(m *apiv1.ConnectResponse) bool   { return m.GetFileKeysRequest() != nil }
func isCommit(m *apiv1.ConnectResponse) bool { return m.GetFilesCommit() != nil }

func (k *fileAgent) sendFilesWanted(hash string, digests ...string) {
	k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FilesWanted{FilesWanted: &apiv1.FilesWanted{Hash: hash, Digests: digests}}})
}

// receiveSet receives a set as an agent does and returns the digests that it lacked.
func (k *fileAgent) receiveSet() (begin *apiv1.FilesBegin, lacked []string) {
	k.Helper()
	begin = k.nextFileMessage(isBegin).GetFilesBegin()
	return begin, k.finishSet(begin)
}

func (k *fileAgent) finishSet(begin *apiv1.FilesBegin) (lacked []string) {
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
	k.sendFilesWanted(begin.GetHash(), lacked...)
	require.Equal(k, begin.GetHash(), k.nextFileMessage(isCommit).GetFilesCommit().GetHash())
	for _, f := range begin.GetFiles() {
		if data, ok := k.receivedData[f.GetDigest()]; ok {
			require.Equal(k, f.GetDigest(), machinefiles.Digest(data))
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
	k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FilesApplied{FilesApplied: m}})
	return lacked
}

// requireNoFileMessages checks that the server sends no message about files.
func (k *fileAgent) requireNoFileMessages() {
	k.Helper()
	for range 3 {
		k.awaitAck(k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: k.healthReport()}}))
	}
	for len(k.messages) > 0 {
		m := k.nextMessage()
		require.Nil(k, m.GetFilesBegin())
		require.Nil(k, m.GetFileKeysRequest())
	}
}

// requireContent checks the content of the machine's only file.
func (k *fileAgent) requireContent(content string) {
	k.Helper()
	require.Len(k, k.have, 1)
	require.Equal(k, content, string(k.receivedData[k.have[0].Digest]))
}

// leafCertificate returns the first certificate in a set's first file.
func (k *fileAgent) leafCertificate(begin *apiv1.FilesBegin) *x509.Certificate {
	k.Helper()
	certs, err := pki.ParseCertificates(k.receivedData[begin.GetFiles()[0].GetDigest()])
	require.NoError(k, err)
	return certs[0]
}
