package server

import (
	"crypto/rand"
	"path"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/buckets"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/ledger"
)

// What the ledger takes of one tenant's operators, so that none can fill it.
const (
	actionsPerSecond, actionBurst = 1, 600
	maxRecordedRequest            = 4 << 10 // bytes
)

// An audit writes calls of operators and administrators that change something to the
// ledger, which every leader reads. It does not block: what is not durable within a second
// or so when the process dies is lost. Its methods may be called concurrently.
type audit struct {
	ledger  *ledger.Writer
	now     func() time.Time
	tenants *buckets.Buckets

	mu      sync.Mutex
	omitted map[nstance.TenantID]int
}

func newAudit(w *ledger.Writer, now func() time.Time) *audit {
	return &audit{ledger: w, now: now, tenants: buckets.New(actionsPerSecond, actionBurst), omitted: map[nstance.TenantID]int{}}
}

// called takes a call that has ended.
func (a *audit) called(by nstance.Identity, method string, req any, err error) {
	m, ok := req.(proto.Message)
	if !ok || by.Role == nstance.RoleAgent || method == apiv1.OperatorService_RenewCertificate_FullMethodName || changedNothing(req, err) {
		return
	}
	now := a.now()
	omitted, ok := a.admit(by, now)
	if !ok {
		return
	}
	action := ledger.Action{
		ID: rand.Text(), At: now, By: by.Subject, Role: by.Role, Tenant: by.Tenant, Method: path.Base(method), Request: recorded(m), Omitted: omitted,
	}
	if err != nil {
		action.Code, action.Error = nstance.CodeOf(err), clip.Line(err.Error())
	}
	a.ledger.Add(ledger.Entry{Action: &action}, nil)
}

// admit reports whether a call is recorded, and how many of its tenant were not since the
// last one that was.
func (a *audit) admit(by nstance.Identity, now time.Time) (omitted int, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if by.Role != nstance.RoleAdmin && !a.tenants.Allow(string(by.Tenant), now) {
		a.omitted[by.Tenant]++
		return 0, false
	}
	omitted = a.omitted[by.Tenant]
	delete(a.omitted, by.Tenant)
	return omitted, true
}

// changedNothing reports whether a call was a dry run, or was refused before it did
// anything.
func changedNothing(req any, err error) bool {
	if r, ok := req.(interface{ GetDryRun() bool }); ok && r.GetDryRun() {
		return true
	}
	switch nstance.CodeOf(err) {
	case nstance.Invalid, nstance.NotFound, nstance.Denied, nstance.Conflict, nstance.Throttled, nstance.Quota:
		return err != nil
	}
	return false
}

// recorded returns a request as JSON, without what may be secret: bytes, arguments and
// values of variables.
func recorded(req proto.Message) string {
	req = proto.Clone(req)
	withoutSecrets(req.ProtoReflect())
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(req)
	if err != nil {
		return ""
	}
	return clip.Text(string(text), maxRecordedRequest)
}

func withoutSecrets(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
				v.Map().Set(k, f.MapValue().Default())
				return true
			})
		case f.Kind() == protoreflect.BytesKind, f.Name() == "args":
			m.Clear(f)
		case f.Message() != nil && !f.IsList():
			withoutSecrets(v.Message())
		}
		return true
	})
}
