package operator

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
)

// identity returns the stored identity, registering if there is none.
func (c *clusterController) identity(ctx context.Context, nc *infrav1.NstanceCluster) (shards.Identity, error) {
	id, err := c.keeper.Load(ctx, nc)
	if !errors.Is(err, nstance.NotFound) {
		return id, err
	}
	if err := c.keeper.Register(ctx, nc); err != nil {
		return id, err
	}
	return c.keeper.Load(ctx, nc)
}

// keepCertificate replaces the certificate when it is due, or of no use any more, and shows
// whether there is a good one. It returns when to look again.
func (c *clusterController) keepCertificate(ctx context.Context, nc *infrav1.NstanceCluster, fl *fleet) time.Duration {
	if reason, why := fl.useless(time.Now()); reason != "" {
		return c.registerAgain(ctx, nc, fl, reason, why)
	}
	if wait := time.Until(fl.renewAt()); wait > 0 {
		setRegistered(nc, metav1.ConditionTrue, reasonRegistered, "")
		return wait
	}
	return c.renew(ctx, nc, fl)
}

// registerAgain replaces a certificate that is of no use. The condition of the last attempt
// stays until the next one.
func (c *clusterController) registerAgain(ctx context.Context, nc *infrav1.NstanceCluster, fl *fleet, reason, why string) time.Duration {
	wait := fl.requestPause(time.Now())
	if wait > 0 && conditions.IsFalse(nc, infrav1.ConditionRegistered) {
		return wait
	}
	if wait > 0 {
		setRegistered(nc, metav1.ConditionFalse, reason, why)
		return wait
	}
	if err := c.keeper.Register(ctx, nc); err != nil {
		setRegistered(nc, metav1.ConditionFalse, reason, why+": "+err.Error())
		return retryRegistration
	}
	setRegistered(nc, metav1.ConditionTrue, reasonRegistered, "")
	return time.Millisecond // to use it
}

// renew replaces a certificate that is accepted. If that fails, it is used until its end.
func (c *clusterController) renew(ctx context.Context, nc *infrav1.NstanceCluster, fl *fleet) time.Duration {
	if wait := fl.requestPause(time.Now()); wait > 0 {
		return wait
	}
	if err := c.renewAtOne(ctx, nc, fl.connectedAPIs()); err != nil {
		setRegistered(nc, metav1.ConditionTrue, reasonUnrenewed, "the certificate is valid until "+stamp(fl.currentIdentity().NotAfter)+" and was not renewed: "+err.Error())
		return retryRegistration
	}
	setRegistered(nc, metav1.ConditionTrue, reasonRegistered, "")
	return time.Millisecond // to use it
}

// renewAtOne replaces the certificate at the first shard that can: any may be in trouble for
// longer than the certificate lasts.
func (c *clusterController) renewAtOne(ctx context.Context, nc *infrav1.NstanceCluster, apis []apiv1.OperatorServiceClient) error {
	if len(apis) == 0 {
		return nstance.Errorf(nstance.Unavailable, "no shard of %s/%s is connected", nc.Namespace, nc.Name)
	}
	var failed []error
	for _, api := range apis {
		err := c.keeper.Renew(ctx, nc, api)
		if err == nil {
			return nil
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

func setRegistered(nc *infrav1.NstanceCluster, status metav1.ConditionStatus, reason, message string) {
	conditions.Set(nc, metav1.Condition{Type: infrav1.ConditionRegistered, Status: status, Reason: reason, Message: message})
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// useless returns why the certificate cannot be used any more: no shard accepts it, and it
// has expired, or every shard refuses it. Empty: it can. A shard that is away decides nothing.
func (fl *fleet) useless(now time.Time) (reason, why string) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	refusedByAll := true
	for _, name := range slices.Sorted(maps.Keys(fl.shards)) {
		c := fl.shards[name]
		if _, err := c.API(); err == nil {
			return "", "" // whatever our clock says
		}
		if c.refused == nil {
			refusedByAll = false
		} else if why == "" {
			why = "no trust between shard " + name + " and the certificate: " + c.refused.Error()
		}
	}
	switch {
	case !now.Before(fl.identity.NotAfter):
		return reasonExpired, "the certificate expired at " + stamp(fl.identity.NotAfter)
	case refusedByAll && why != "":
		return reasonUnaccepted, why
	}
	return "", ""
}

// recordRefusal records whether a shard refuses the certificate in use, and reports whether
// that is new. A shard that is lost after a refusal still refuses it. It is called with the
// fleet locked.
func (fl *fleet) recordRefusal(c *connection, connected bool, why error) (changed bool) {
	refusal, ok := errors.AsType[*shards.Refusal](why)
	switch {
	case connected:
		c.refused = nil
	case ok && c.refused == nil && bytes.Equal(refusal.Certificate, fl.identity.Certificate()):
		c.refused = refusal.Err
		return true
	}
	return false
}

// renewAt returns when the certificate is to be renewed: earlier where a server wants it.
func (fl *fleet) renewAt() time.Time {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if at := fl.renewRequested; !at.IsZero() && at.Before(fl.identity.RenewAt) {
		return at
	}
	return fl.identity.RenewAt
}

// requestPause returns how long to wait before a certificate may be requested. Zero: it is
// requested now, and the next time after the pause. Events of shards lead to many passes.
func (fl *fleet) requestPause(now time.Time) time.Duration {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if wait := fl.lastRequest.Add(retryRegistration).Sub(now); wait > 0 {
		return wait
	}
	fl.lastRequest = now
	return 0
}
