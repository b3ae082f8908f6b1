package server

import (
	"context"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/buckets"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server/internal/agents"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// Bounds on one identity, over all its connections. Operators have the budgets of their
// tenant beside them.
const (
	agentCalls, agentCallBurst = 1, 60 // sessions and renewals a second: an agent has one session for hours
	adminCalls, adminCallBurst = 500, 5000
	refusedCalls, refusedBurst = 50, 500 // calls refused a second; beyond, the connection is closed
	refusedFor                 = 10 * time.Second
	maxRefused                 = 10_000
	longestRefusal             = 5 * time.Minute
)

// callerLimits bound what single identities may ask for, by token buckets in memory.
type callerLimits struct {
	agents, admins, refusals *buckets.Buckets

	mu      sync.Mutex
	refused map[string]refusal // by serial of the certificate, or by name of the caller
}

// A refusal is why a certificate, or all of a caller, are not in use any more.
type refusal struct {
	why   error
	until time.Time // then its record is read again
}

func newCallerLimits() *callerLimits {
	return &callerLimits{
		agents: buckets.New(agentCalls, agentCallBurst), admins: buckets.New(adminCalls, adminCallBurst),
		refusals: buckets.New(refusedCalls, refusedBurst), refused: map[string]refusal{},
	}
}

// call counts one call of an agent, an administrator or a server. Fails with Throttled
// beyond its limit.
func (l *callerLimits) call(id nstance.Identity) error {
	b := l.agents
	if id.Role == nstance.RoleAdmin {
		b = l.admins
	}
	if b.Allow(callerName(id), time.Now()) {
		return nil
	}
	return &nstance.Error{Code: nstance.Throttled, Msg: string(id.Role) + " " + id.Subject + " calls too often", Remedy: "repeat with growing delays"}
}

func callerName(id nstance.Identity) string {
	return string(id.Role) + "/" + string(id.Tenant) + "/" + id.Subject
}

// remember keeps why a certificate is not in use any more, or without serial all of its
// holder, for a short time: until then its record is not read again.
func (l *callerLimits) remember(id nstance.Identity, why error) {
	key := id.Serial
	if key == "" {
		key = callerName(id)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); len(l.refused) >= maxRefused {
		for key, r := range l.refused {
			if now.After(r.until) {
				delete(l.refused, key)
			}
		}
	}
	if len(l.refused) < maxRefused {
		l.refused[key] = refusal{why, time.Now().Add(refusedFor)}
	}
}

// refusalOf returns why a certificate was refused a short time ago; nil: it was not.
func (l *callerLimits) refusalOf(id nstance.Identity) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range []string{id.Serial, callerName(id)} {
		if r, ok := l.refused[key]; ok && time.Now().Before(r.until) {
			return r.why
		}
	}
	return nil
}

// endIdentity ends the connections of an identity that is not in use any more: with this
// certificate, or without serial with any.
func (s *Server) endIdentity(id nstance.Identity, why error) {
	s.limits.remember(id, why)
	s.gate.End(id, why)
}

// checkInUse fails where the certificate of a new connection is known not to be in use
// any more. It reads nothing from storage: each call does.
func (s *Server) checkInUse(id nstance.Identity) error {
	if err := s.limits.refusalOf(id); err != nil {
		return err
	}
	t, err := s.leading()
	if err != nil || id.Role != nstance.RoleAgent {
		return nil //nolint:nilerr // a server that does not lead refuses the call itself
	}
	return agents.InUse(t.reconciler.Records(), nstance.InstanceID(id.Subject))
}

// A verification is whether the certificate of a call is in use. It begins with the call,
// and does not wait for the call's message.
type verification struct {
	done    chan struct{}
	promote bool
	err     error
}

type verificationKey struct{}

// verify begins a verification, which ends with ctx. Where it refuses the certificate, the
// connections of its holder end.
func (s *Server) verify(ctx context.Context, t *term, id nstance.Identity) context.Context {
	v := &verification{done: make(chan struct{})}
	go func() {
		defer close(v.done)
		if v.promote, v.err = t.registrar.Verify(ctx, id); isRefusal(v.err) {
			s.endIdentity(id, v.err)
		}
	}()
	return context.WithValue(ctx, verificationKey{}, v)
}

// verified returns the result of the verification that the call began with.
func verified(ctx context.Context) (promote bool, err error) {
	v, ok := ctx.Value(verificationKey{}).(*verification)
	if !ok {
		return false, nstance.Errorf(nstance.Internal, "the certificate of this call was not verified")
	}
	select {
	case <-v.done:
		return v.promote, v.err
	case <-ctx.Done():
		return false, nstance.Errorf(nstance.Unavailable, "the caller has left: %w", ctx.Err())
	}
}

// isRefusal reports whether an error of Verify says that a certificate is not in use
// any more.
func isRefusal(err error) bool {
	code := nstance.CodeOf(err)
	return err != nil && (code == nstance.Denied || code == nstance.NotFound)
}

// tap decides about a call when its stream opens: nothing of its message is read before.
// It never blocks. Storage is read for calls that it lets begin, whether their certificates
// are in use, while their messages arrive.
func (s *Server) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if access[info.FullMethodName] == nil {
		return nil, status.Errorf(codes.Unimplemented, "unknown method %.128s", path.Base(info.FullMethodName))
	}
	begun, err := s.begin(ctx, info.FullMethodName)
	if err != nil {
		s.telemetry.Refused(info.FullMethodName, err)
		s.dropAbuser(ctx)
		return nil, wire.Status(err)
	}
	return begun, nil
}

func (s *Server) begin(ctx context.Context, method string) (context.Context, error) {
	if err := ports.Refusal(ctx); err != nil {
		return nil, err
	}
	id, t, err := s.precheck(ctx, method)
	if err != nil {
		return nil, err
	}
	if id.Role == nstance.RoleOperator {
		err = s.operators.AllowRequest(id.Tenant)
	} else {
		err = s.limits.call(id)
	}
	if err != nil {
		return nil, err
	}
	if ctx, err = ports.Begin(ctx); err != nil {
		return nil, err
	}
	return s.verify(ctx, t, id), nil
}

// dropAbuser closes the connection of a client that goes on calling although it is
// refused. gRPC keeps the deadline of a refused call in memory until it has passed: one
// that is far away counts as abuse too.
func (s *Server) dropAbuser(ctx context.Context) {
	id, err := ports.IdentityOf(ctx)
	deadline, ok := ctx.Deadline()
	if err != nil || !s.limits.refusals.Allow(callerName(id), time.Now()) || ok && time.Until(deadline) > longestRefusal {
		ports.Drop(ctx)
	}
}

// tapRegistration is tap for the port for registration.
func (s *Server) tapRegistration(ctx context.Context, _ *tap.Info) (context.Context, error) {
	begun, err := ports.Begin(ctx)
	if err != nil {
		ports.Drop(ctx)
		return nil, wire.Status(err)
	}
	return begun, nil
}

// tapPeer is tap for the port of the shard's other servers.
func (s *Server) tapPeer(ctx context.Context, info *tap.Info) (context.Context, error) {
	id, err := ports.IdentityOf(ctx)
	if err == nil {
		err = s.checkTrusted(id)
	}
	if err == nil {
		err = s.limits.call(id)
	}
	if err == nil {
		ctx, err = ports.Begin(ctx)
	}
	if err != nil {
		return nil, wire.Status(err)
	}
	return ctx, nil
}

// counted is the interceptor of a request whose message has arrived: its bytes count no
// more, and those of its answer do from now on.
func counted(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ports.Received(ctx)
	resp, err := next(ctx, req)
	if m, ok := resp.(proto.Message); ok && err == nil {
		ports.Answered(ctx, proto.Size(m))
	}
	return resp, err
}
