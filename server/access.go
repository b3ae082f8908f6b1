package server

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// access says which roles may call what. A method that is not listed cannot be called.
// Tenants are checked where the object is known: another tenant's object does not
// exist for an operator.
var access = map[string][]nstance.Role{
	apiv1.AgentService_Connect_FullMethodName:                 {nstance.RoleAgent},
	apiv1.AgentService_RenewCertificate_FullMethodName:        {nstance.RoleAgent},
	apiv1.PeerService_Watch_FullMethodName:                    {nstance.RoleServer},
	apiv1.OperatorService_ListGroups_FullMethodName:           {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_WatchGroups_FullMethodName:          {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_CreateGroup_FullMethodName:          {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_DeleteGroup_FullMethodName:          {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_CreateInstance_FullMethodName:       {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_UpdateGroup_FullMethodName:          {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_PauseGroup_FullMethodName:           {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_ResumeGroup_FullMethodName:          {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_RollbackGroup_FullMethodName:        {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_Plan_FullMethodName:                 {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_Freeze_FullMethodName:               {nstance.RoleAdmin},
	apiv1.OperatorService_Thaw_FullMethodName:                 {nstance.RoleAdmin},
	apiv1.OperatorService_AvoidPool_FullMethodName:            {nstance.RoleAdmin},
	apiv1.OperatorService_ReleasePool_FullMethodName:          {nstance.RoleAdmin},
	apiv1.OperatorService_ListAvoidedPools_FullMethodName:     {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_ClaimStandby_FullMethodName:         {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_ReleaseStandby_FullMethodName:       {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_ListInstances_FullMethodName:        {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_GetInstance_FullMethodName:          {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_GetConsoleOutput_FullMethodName:     {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_DeleteInstance_FullMethodName:       {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_DrainInstance_FullMethodName:        {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_WatchInstanceEvents_FullMethodName:  {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_AcknowledgeDrained_FullMethodName:   {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_Interrupt_FullMethodName:            {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_GetConfigStatus_FullMethodName:      {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_GetConfig_FullMethodName:            {nstance.RoleAdmin},
	apiv1.OperatorService_RefreshConfig_FullMethodName:        {nstance.RoleAdmin},
	apiv1.OperatorService_ConfirmConfig_FullMethodName:        {nstance.RoleAdmin},
	apiv1.OperatorService_PreserveInstance_FullMethodName:     {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_ListEvents_FullMethodName:           {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_ListInterruptions_FullMethodName:    {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_GetInterruptionRates_FullMethodName: {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_GetRecord_FullMethodName:            {nstance.RoleAdmin},
	apiv1.OperatorService_RepairRecord_FullMethodName:         {nstance.RoleAdmin},
	apiv1.OperatorService_GetShardStatus_FullMethodName:       {nstance.RoleOperator, nstance.RoleAdmin},
	apiv1.OperatorService_ListOrphans_FullMethodName:          {nstance.RoleAdmin},
	apiv1.OperatorService_AdoptOrphan_FullMethodName:          {nstance.RoleAdmin},
	apiv1.OperatorService_DeleteOrphan_FullMethodName:         {nstance.RoleAdmin},
	apiv1.OperatorService_ListKeys_FullMethodName:             {nstance.RoleAdmin},
	apiv1.OperatorService_RotateKey_FullMethodName:            {nstance.RoleAdmin},
	apiv1.OperatorService_ListOperators_FullMethodName:        {nstance.RoleAdmin},
	apiv1.OperatorService_RevokeOperator_FullMethodName:       {nstance.RoleAdmin},
	apiv1.OperatorService_RenewCertificate_FullMethodName:     {nstance.RoleOperator, nstance.RoleAdmin},
}

// caller is who makes a call, and the term that it is made in.
type caller struct {
	nstance.Identity
	term *term
}

type callerKey struct{}

// callerOf returns the caller that admit put into ctx.
func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// admit identifies the caller by its verified certificate, and refuses it
// unless its role may call method, its certificate is valid, and this server leads.
func (s *Server) admit(ctx context.Context, method string) (context.Context, error) {
	id, err := ports.IdentityOf(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(access[method], id.Role) {
		return nil, forbidden(method, id.Role)
	}
	if err := s.expiry.Check(id); err != nil {
		return nil, err
	}
	t, err := s.leading()
	if err != nil {
		return nil, err
	}
	if !s.keys.Identity.Trusts(id.Issuer) { // it was when the connection was made
		return nil, ports.ErrUntrusted
	}
	promote, err := t.registrar.Verify(ctx, id)
	if err != nil {
		return nil, err
	}
	if promote {
		t.records.Successors.Use(id)
	}
	if id.Role == nstance.RoleOperator {
		if err := s.operators.AllowRequest(id.Tenant); err != nil {
			return nil, err
		}
	}
	return s.operators.WithCaller(context.WithValue(ctx, callerKey{}, caller{id, t}), id, t.operators), nil
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
	ctx, cancel := callerOf(ctx).term.bound(ctx)
	defer cancel()
	resp, err := next(ctx, req)
	return resp, wire.Status(err)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := s.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return wire.Status(err)
	}
	serve := func(ctx context.Context) error { return next(srv, &calledStream{ss, ctx}) }
	if c := callerOf(ctx); c.Role != nstance.RoleAgent {
		return wire.Status(s.operators.ServeStream(ctx, func(ctx context.Context) error { return s.expiry.Serve(ctx, c.Identity, serve) }))
	}
	return wire.Status(serve(ctx)) // the session ends with its certificate
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
	return wire.Status(s.expiry.Serve(ss.Context(), id, func(ctx context.Context) error { return next(srv, &calledStream{ss, ctx}) }))
}

// calledStream is a stream whose context knows the caller.
type calledStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the context with the caller in it.
func (c *calledStream) Context() context.Context { return c.ctx }
