package azure

import (
	"context"
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// A part is a resource that is made before its machine, which it belongs to.
type part struct {
	what   string // such as: disk x
	get    func(context.Context) (shownPart, error)
	put    func(context.Context) (operation, error)
	remove func(context.Context) error // asks Azure to delete it
}

// A shownPart is what Azure shows of a part.
type shownPart struct {
	tags  map[string]*string
	state string // of its last operation
	other string // how it differs from what is asked for; empty: it does not
}

func (s shownPart) ready() bool { return strings.EqualFold(s.state, "succeeded") }

func (s shownPart) failed() bool {
	return strings.EqualFold(s.state, "failed") || strings.EqualFold(s.state, "canceled")
}

// An operation is one that a PUT has begun.
type operation interface {
	Poll(context.Context) (*http.Response, error)
	Done() bool
}

// partTries is how often a part is put whose operations fail.
const partTries = 2

// ensure makes a part unless it is there, and waits until a machine can have it. One that has
// failed is put again once: Azure does not repair it by itself. One that was made for another
// shape is replaced. No part of a machine that exists is changed.
func (p *Provider) ensure(ctx context.Context, r *request, x part) error {
	got, err := x.settle(ctx, r, nil)
	switch {
	case isGone(err):
		return x.make(ctx, r, partTries)
	case err != nil || got.ready() && got.other == "":
		return err
	}
	if err := p.checkNoMachine(ctx, r); err != nil {
		return err
	}
	if got.other == "" {
		return x.make(ctx, r, partTries-1)
	}
	if err := x.discard(ctx, got.other); err != nil {
		return err
	}
	return x.make(ctx, r, partTries)
}

// make puts the part until an operation makes it, a few times.
func (x part) make(ctx context.Context, r *request, tries int) error {
	var op operation
	for range tries {
		var err error
		if op, err = x.begin(ctx); err != nil {
			return err
		}
		got, err := x.settle(ctx, r, op)
		switch {
		case err != nil && !isGone(err):
			return err
		case err == nil && got.ready():
			return nil
		}
	}
	return x.failure(ctx, op)
}

// begin puts the part. It returns no operation when another call has put it since it was read.
func (x part) begin(ctx context.Context) (operation, error) {
	op, err := x.put(ctx)
	switch {
	case isUnmet(err):
		return nil, nil
	case err != nil:
		return nil, partError(err)
	}
	return op, nil
}

// discard deletes the part, and waits until it is gone.
func (x part) discard(ctx context.Context, why string) error {
	for {
		if err := x.remove(ctx); err != nil {
			return x.notReplaced(why, err)
		}
		if _, err := x.get(ctx); isGone(err) {
			return nil
		}
		if !sleep.For(ctx, nicPause) {
			return x.notReplaced(why, ctx.Err())
		}
	}
}

// notReplaced is the error of a part that cannot be deleted yet. Azure refuses that for three
// minutes after a failed create, and as long as a machine has the part: its refusal says
// nothing of the request.
func (x part) notReplaced(why string, err error) error {
	code := nstance.CodeOf(err)
	switch code {
	case nstance.Conflict, nstance.Denied, nstance.Throttled:
	default:
		code = nstance.Unavailable
	}
	return nstance.Errorf(code, "azure: %s is to be replaced, since %s: %w", x.what, why, err)
}

// settle returns the part once no operation changes it. It fails with Azure's 404 when there is
// none: after op, which has put it, only when op has failed.
func (x part) settle(ctx context.Context, r *request, op operation) (shownPart, error) {
	for {
		got, err := x.get(ctx)
		switch {
		case isGone(err):
			if op == nil || resultOf(ctx, op).failed() {
				return got, err
			}
		case err != nil:
			return got, createError(before(err))
		default:
			if err := checkMarks(x.what, got.tags, r.machine()); err != nil {
				return got, err
			}
			if got.ready() || got.failed() {
				return got, nil
			}
		}
		if !sleep.For(ctx, nicPause) {
			return got, createError(before(ctx.Err()))
		}
	}
}

// failure is the error of a part whose last operation has failed. Azure's conflicts end by
// themselves, and say nothing of the machine.
func (x part) failure(ctx context.Context, op operation) error {
	c, code := resultOf(ctx, op).Error, nstance.Invalid
	if c.Code == "" {
		return nstance.Errorf(code, "azure: %s has failed, also when it was put again, and Azure does not say why", x.what)
	}
	if r := ruleFor(http.StatusOK, c); r != nil {
		code = r.ours
	}
	if code == nstance.Conflict {
		code = nstance.Unavailable
	}
	return nstance.Errorf(code, "azure: %s has failed, also when it was put again: %w", x.what, &answer{cause: c})
}

// An operationResult is what Azure says of an operation ("Track asynchronous Azure operations").
type operationResult struct {
	Status string `json:"status"`
	Error  cause  `json:"error"`
}

func (o operationResult) failed() bool { return shownPart{state: o.Status}.failed() }

// resultOf reads an operation. What cannot be read is empty: it only explains.
func resultOf(ctx context.Context, op operation) (out operationResult) {
	if op == nil {
		return out
	}
	resp, err := op.Poll(ctx) //nolint:bodyclose // the SDK has read and closed it
	if err != nil || runtime.UnmarshalAsJSON(resp, &out) != nil {
		return operationResult{}
	}
	return out
}

// errMachineExists says that a part's machine exists: the part is not changed.
var errMachineExists error = &nstance.Error{Code: nstance.Conflict, Msg: "its machine exists"}

// checkNoMachine fails with errMachineExists when the machine exists.
func (p *Provider) checkNoMachine(ctx context.Context, r *request) error {
	_, err := p.read(ctx, string(r.spec.ID), false)
	switch {
	case isGone(err):
		return nil
	case err != nil:
		return createError(before(err))
	}
	return errMachineExists
}
