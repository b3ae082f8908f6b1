package wire

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-go/nstance"
)

// domain is the ErrorInfo domain that carries the exact code.
const domain = "nstance"

var grpcCodes = map[nstance.Code]codes.Code{
	nstance.Invalid:     codes.InvalidArgument,
	nstance.NotFound:    codes.NotFound,
	nstance.Conflict:    codes.Aborted,
	nstance.Capacity:    codes.ResourceExhausted,
	nstance.Quota:       codes.ResourceExhausted,
	nstance.Throttled:   codes.ResourceExhausted,
	nstance.Denied:      codes.PermissionDenied,
	nstance.Ambiguous:   codes.Unknown,
	nstance.Unavailable: codes.Unavailable,
	nstance.Internal:    codes.Internal,
}

// Status returns err as a gRPC status error: the nearest gRPC code, with the
// exact code, the field, the remedy and who leads as details. Nil stays nil, and an error
// that is a gRPC status already stays as it is.
func Status(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := known(nstance.CodeOf(err))
	info := &errdetails.ErrorInfo{Domain: domain, Reason: string(code), Metadata: map[string]string{}}
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		for k, v := range map[string]string{"field": e.Field, "remedy": e.Remedy, "leader": e.Leader, "leader_registration": e.LeaderRegistration} {
			if v != "" {
				info.Metadata[k] = valid(v)
			}
		}
	}
	st := status.New(grpcCodes[code], valid(err.Error()))
	if detailed, derr := st.WithDetails(info); derr == nil {
		st = detailed
	}
	return st.Err()
}

// ErrorOf returns the domain error behind a gRPC error. A status without our
// details is classified by its gRPC code.
func ErrorOf(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &nstance.Error{Code: nstance.Unavailable, Msg: err.Error(), Err: err}
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	e := &nstance.Error{Code: codeOf(st.Code()), Msg: st.Message(), Err: err}
	for _, d := range st.Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if ok && info.GetDomain() == domain {
			e.Code = known(nstance.Code(info.GetReason())) // the message names field and remedy already
			e.Leader, e.LeaderRegistration = info.GetMetadata()["leader"], info.GetMetadata()["leader_registration"]
		}
	}
	return e
}

// known returns c, or Internal for a code outside the closed set: such an error
// must never look like success, which is what an unknown gRPC code would be.
func known(c nstance.Code) nstance.Code {
	if _, ok := grpcCodes[c]; !ok {
		return nstance.Internal
	}
	return c
}

func codeOf(c codes.Code) nstance.Code {
	switch c {
	case codes.InvalidArgument, codes.OutOfRange, codes.FailedPrecondition:
		return nstance.Invalid
	case codes.NotFound:
		return nstance.NotFound
	case codes.Aborted, codes.AlreadyExists:
		return nstance.Conflict
	case codes.ResourceExhausted:
		return nstance.Throttled
	case codes.PermissionDenied, codes.Unauthenticated:
		return nstance.Denied
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return nstance.Unavailable
	}
	return nstance.Internal
}
