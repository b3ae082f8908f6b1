package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"time"

	"google.golang.org/grpc"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// An agent is a session that receives and checks files in memory, because a thousand
// machines do not share one disk.
type agent struct {
	stream     grpc.BidiStreamingClient[apiv1.ConnectRequest, apiv1.ConnectResponse]
	number     uint64
	hash       string
	have       []*apiv1.FileStatus
	begin      *apiv1.FilesBegin
	sums       map[string]hash.Hash
	onComplete func(hash string, at time.Time) // called for a complete set
}

func newAgent(ctx context.Context, conn *grpc.ClientConn, placed func(string, time.Time)) (*agent, error) {
	stream, err := apiv1.NewAgentServiceClient(conn).Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", wire.ErrorOf(err))
	}
	a := &agent{stream: stream, onComplete: placed}
	if m, err := stream.Recv(); err != nil || m.GetWelcome() == nil {
		return nil, fmt.Errorf("no welcome: %w", wire.ErrorOf(err))
	}
	return a, a.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: &apiv1.HealthReport{Version: wire.ReportVersion}}})
}

func (a *agent) send(m *apiv1.ConnectRequest) error {
	a.number++
	m.Number = a.number
	return a.stream.Send(m)
}

// run handles the server's messages until the stream ends.
func (a *agent) run() error {
	for {
		m, err := a.stream.Recv()
		if err == nil {
			err = a.handle(m)
		}
		if err != nil {
			return err
		}
	}
}

func (a *agent) handle(m *apiv1.ConnectResponse) error {
	switch m := m.GetMessage().(type) {
	case *apiv1.ConnectResponse_FilesBegin:
		return a.requestMissing(m.FilesBegin)
	case *apiv1.ConnectResponse_FileChunk:
		sum := a.sums[m.FileChunk.GetDigest()]
		if sum == nil {
			sum = sha256.New()
			a.sums[m.FileChunk.GetDigest()] = sum
		}
		sum.Write(m.FileChunk.GetData())
	case *apiv1.ConnectResponse_FilesCommit:
		return a.commit()
	}
	return nil
}

// requestMissing requests the changed contents.
func (a *agent) requestMissing(begin *apiv1.FilesBegin) error {
	a.begin, a.sums = begin, map[string]hash.Hash{}
	had := map[string]bool{}
	for _, f := range a.have {
		had[f.GetDigest()] = true
	}
	m := &apiv1.FilesWanted{Hash: begin.GetHash()}
	for _, f := range begin.GetFiles() {
		if !had[f.GetDigest()] {
			m.Digests = append(m.Digests, f.GetDigest())
		}
	}
	return a.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FilesWanted{FilesWanted: m}})
}

func (a *agent) commit() error {
	for digest, sum := range a.sums {
		if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != digest {
			return fmt.Errorf("%s came as %s", digest, got)
		}
	}
	a.onComplete(a.begin.GetHash(), time.Now())
	m := &apiv1.FilesApplied{Hash: a.begin.GetHash()}
	for _, f := range a.begin.GetFiles() {
		m.Files = append(m.Files, &apiv1.FileStatus{Path: f.GetPath(), Digest: f.GetDigest()})
	}
	a.hash, a.have = m.GetHash(), m.GetFiles()
	return a.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FilesApplied{FilesApplied: m}})
}
