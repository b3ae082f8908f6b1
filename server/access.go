package server

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// access says which roles may call what. A method that is not listed cannot be called.
// Tenants are checked where the object is known: another tenant's object does not
// exist for an operator.
var access = map[string][]nstance.Role{
	apiv1.AgentService_Connect_FullMethodName:                   {nstance.RoleAgent},
	apiv1.AgentService_RenewCertificate_FullMethodName:          {nstance.RoleAgent},
	apiv1.PeerService_Watch_FullMethodName:                      {nstance.RoleServer},
	apiv1.OperatorService_ListGroups_FullMethodName:             {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_WatchGroups_FullMethodName:            {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_CreateGroup_FullMethodName:            {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_DeleteGroup_FullMethodName:            {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_CreateInstance_FullMethodName:         {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_UpdateGroup_FullMethodName:            {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_PauseGroup_FullMethodName:             {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_ResumeGroup_FullMethodName:            {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_RollbackGroup_FullMethodName:          {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_Plan_FullMethodName:                   {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_Freeze_FullMethodName:                 {nstance.RoleAdmin},
	apiv1.OperatorService_Thaw_FullMethodName:                   {nstance.RoleAdmin},
	apiv1.OperatorService_AvoidPool_FullMethodName:              {nstance.RoleAdmin},
	apiv1.OperatorService_ReleasePool_FullMethodName:            {nstance.RoleAdmin},
	apiv1.OperatorService_ListAvoidedPools_FullMethodName:       {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_AcknowledgeAttention_FullMethodName:   {nstance.RoleAdmin},
	apiv1.OperatorService_UnacknowledgeAttention_FullMethodName: {nstance.RoleAdmin},
	apiv1.OperatorService_ClaimStandby_FullMethodName:           {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_ReleaseStandby_FullMethodName:         {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_ListInstances_FullMethodName:          {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_GetInstance_FullMethodName:            {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_GetConsoleOutput_FullMethodName:       {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_DeleteInstance_FullMethodName:         {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_DrainInstance_FullMethodName:          {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_WatchInstanceEvents_FullMethodName:    {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_AcknowledgeDrained_FullMethodName:     {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_Interrupt_FullMethodName:              {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_GetConfigStatus_FullMethodName:        {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_GetConfig_FullMethodName:              {nstance.RoleAdmin},
	apiv1.OperatorService_RefreshConfig_FullMethodName:          {nstance.RoleAdmin},
	apiv1.OperatorService_ConfirmConfig_FullMethodName:          {nstance.RoleAdmin},
	apiv1.OperatorService_PreserveInstance_FullMethodName:       {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_ListEvents_FullMethodName:             {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_ListInterruptions_FullMethodName:      {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_GetInterruptionRates_FullMethodName:   {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_ListActions_FullMethodName:            {nstance.RoleAdmin},
	apiv1.OperatorService_GetRecord_FullMethodName:              {nstance.RoleAdmin},
	apiv1.OperatorService_RepairRecord_FullMethodName:           {nstance.RoleAdmin},
	apiv1.OperatorService_GetShardStatus_FullMethodName:         {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_ListOrphans_FullMethodName:            {nstance.RoleAdmin},
	apiv1.OperatorService_AdoptOrphan_FullMethodName:            {nstance.RoleAdmin},
	apiv1.OperatorService_DeleteOrphan_FullMethodName:           {nstance.RoleAdmin},
	apiv1.OperatorService_ListKeys_FullMethodName:               {nstance.RoleAdmin},
	apiv1.OperatorService_RotateKey_FullMethodName:              {nstance.RoleAdmin},
	apiv1.OperatorService_ListOperators_FullMethodName:          {nstance.RoleAdmin},
	apiv1.OperatorService_RevokeOperator_FullMethodName:         {nstance.RoleAdmin},
	apiv1.OperatorService_RenewCertificate_FullMethodName:       {nstance.RoleOperator, nstance.RoleAdmin},
}

// reads are the calls that change nothing, and end with their caller. Any other call is
// worked on under the term: a caller that leaves must not cut a change off between what is
// durable and what is in force.
var reads = map[string]bool{
	apiv1.OperatorService_ListGroups_FullMethodName:           true,
	apiv1.OperatorService_Plan_FullMethodName:                 true,
	apiv1.OperatorService_ListAvoidedPools_FullMethodName:     true,
	apiv1.OperatorService_ListInstances_FullMethodName:        true,
	apiv1.OperatorService_GetInstance_FullMethodName:          true,
	apiv1.OperatorService_GetConsoleOutput_FullMethodName:     true,
	apiv1.OperatorService_GetConfigStatus_FullMethodName:      true,
	apiv1.OperatorService_GetConfig_FullMethodName:            true,
	apiv1.OperatorService_ListEvents_FullMethodName:           true,
	apiv1.OperatorService_ListInterruptions_FullMethodName:    true,
	apiv1.OperatorService_GetInterruptionRates_FullMethodName: true,
	apiv1.OperatorService_ListActions_FullMethodName:          true,
	apiv1.OperatorService_GetRecord_FullMethodName:            true,
	apiv1.OperatorService_GetShardStatus_FullMethodName:       true,
	apiv1.OperatorService_ListOrphans_FullMethodName:          true,
	apiv1.OperatorService_ListKeys_FullMethodName:             true,
	apiv1.OperatorService_ListOperators_FullMethodName:        true,
}

// caller is who makes a call, and the term that it is made in.
type caller struct {
	nstance.Identity
	term *term
}

type callerKey struct{}

// callerOf returns the caller that admit put into ctx.
func callerOf(ctx context.Context) *caller {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c
	}
	return &caller{}
}

// precheck identifies the caller by its verified certificate, and refuses it unless its
// role may call method, its certificate is valid, and this server leads. It reads
// nothing from storage and never blocks.
func (s *Server) precheck(ctx context.Context, method string) (nstance.Identity, *term, error) {
	id, err := ports.IdentityOf(ctx)
	if err != nil {
		return id, nil, err
	}
	if !slices.Contains(access[method], id.Role) {
		return id, nil, forbidden(method, id.Role)
	}
	if err := s.expiry.Check(id); err != nil {
		return id, nil, err
	}
	t, err := s.leading()
	if err != nil {
		return id, nil, err
	}
	return id, t, s.checkTrusted(id)
}

// checkTrusted fails where the key that signed a certificate is not trusted any more: it was
// when the connection was made, which only a leader ends.
func (s *Server) checkTrusted(id nstance.Identity) error {
	if !s.keys.Identity.Trusts(id.Issuer) {
		return ports.ErrUntrusted
	}
	return nil
}

// admit admits the caller of method whose stream tap has let begin, or refuses it where
// its certificate is not in use any more: that is read at each call.
func (s *Server) admit(ctx context.Context, method string) (context.Context, error) {
	id, t, err := s.precheck(ctx, method)
	if err != nil {
		return nil, err
	}
	promote, err := verified(ctx)
	if err != nil {
		return nil, err
	}
	if promote {
		t.records.Successors.Use(id)
	}
	ctx = context.WithValue(ctx, callerKey{}, &caller{id, t})
	if id.Role == nstance.RoleAgent {
		return ctx, nil
	}
	return s.operators.WithCaller(ctx, id, t.operators), nil
}

// forbidden says that a role may not call method, and which may.
func forbidden(method string, role nstance.Role) error {
	err := &nstance.Error{Code: nstance.Denied, Msg: fmt.Sprintf("role %s may not call %s", role, path.Base(method))}
	var may []string
	for _, r := range access[method] {
		may = append(may, string(r))
	}
	if may != nil {
		err.Remedy = "it takes an identity of role " + strings.Join(may, " or ")
	}
	return err
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, err := s.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, wire.Status(err)
	}
	t := callerOf(ctx).term
	if callerOf(ctx).Role != nstance.RoleAgent {
		done, err := s.operators.Serve(ctx)
		if err != nil {
			return nil, wire.Status(err)
		}
		defer done()
	}
	if reads[info.FullMethod] {
		ctx, cancel := t.bound(ctx)
		defer cancel()
		resp, err := next(ctx, req)
		return resp, wire.Status(err)
	}
	ctx, cancel, err := t.work(ctx)
	if err != nil {
		return nil, wire.Status(err)
	}
	defer cancel()
	resp, err := next(ctx, req)
	t.audit.called(callerOf(ctx).Identity, info.FullMethod, req, err)
	return resp, wire.Status(err)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := s.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return wire.Status(err)
	}
	if callerOf(ctx).Role != nstance.RoleAgent {
		return s.operatorStream(ctx, srv, ss, info, next)
	}
	return wire.Status(next(srv, newCalledStream(ctx, ss, info))) // the session ends with its certificate
}

// operatorStream serves an admitted stream of an operator or administrator.
func (s *Server) operatorStream(ctx context.Context, srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	serve := func(ctx context.Context) error { return next(srv, newCalledStream(ctx, ss, info)) }
	id := callerOf(ctx).Identity
	return wire.Status(s.operators.ServeStream(ctx, func(ctx context.Context) error { return s.expiry.Serve(ctx, id, serve) }))
}

// peerStream admits other servers of the shard, which TLS has verified, to the methods
// that access names.
func (s *Server) peerStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	id, err := ports.IdentityOf(ss.Context())
	if err == nil && !slices.Contains(access[info.FullMethod], id.Role) {
		err = forbidden(info.FullMethod, id.Role)
	}
	if err != nil {
		return wire.Status(err)
	}
	return wire.Status(s.expiry.Serve(ss.Context(), id, func(ctx context.Context) error { return next(srv, newCalledStream(ctx, ss, info)) }))
}

// calledStream is a stream whose context knows the caller. The bytes of its messages
// count until each is complete, or written.
type calledStream struct {
	grpc.ServerStream
	ctx      context.Context
	received bool // the first message
}

func newCalledStream(ctx context.Context, ss grpc.ServerStream, info *grpc.StreamServerInfo) *calledStream {
	c := &calledStream{ServerStream: ss, ctx: ctx}
	if info.IsClientStream { // messages may come at any time
		c.received = true
		ports.Received(ctx)
	}
	return c
}

// Context returns the context with the caller in it.
func (c *calledStream) Context() context.Context { return c.ctx }

// RecvMsg implements grpc.ServerStream.
func (c *calledStream) RecvMsg(m any) error {
	arrived := func() { ports.Received(c.ctx) }
	if c.received {
		arrived = ports.Await(c.ctx)
	}
	c.received = true
	defer arrived()
	return c.ServerStream.RecvMsg(m)
}

// SendMsg implements grpc.ServerStream.
func (c *calledStream) SendMsg(m any) error {
	if m, ok := m.(proto.Message); ok {
		ports.Answered(c.ctx, proto.Size(m))
	}
	return c.ServerStream.SendMsg(m)
}
