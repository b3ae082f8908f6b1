package operator

import (
	"context"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/patch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance/internal/clip"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// maxNote is how long an event's note may be: the API server takes 1,024 bytes.
const maxNote = 1000

// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// A statusKeeper stores what a pass has changed on an object of ours, and says in events which of
// its conditions have changed. It is safe for concurrent use.
type statusKeeper struct {
	client client.Client
	events events.EventRecorder
}

// A conditioned object shows its state in conditions.
type conditioned interface {
	client.Object
	conditions.Getter
}

// open is called before a pass over an object changes it. The function that it returns is
// called at the pass's end, with the pass's error. The conditions are those that only the
// operator sets.
func (k *statusKeeper) open(obj conditioned, owned ...string) (store func(context.Context, error) error, err error) {
	helper, err := patch.NewHelper(obj, k.client)
	if err != nil {
		return nil, err
	}
	before := slices.Clone(obj.GetConditions())
	return func(ctx context.Context, failed error) error {
		err := unlessGone(helper.Patch(ctx, obj, patch.WithOwnedConditions{Conditions: owned}))
		if err == nil {
			k.announce(obj, before, owned)
		}
		return errors.Join(failed, err)
	}, nil
}

// announce has an event say each change of a condition. A change of its message alone is
// none: the object shows it.
func (k *statusKeeper) announce(obj conditioned, before []metav1.Condition, owned []string) {
	for _, name := range owned {
		now, was := conditions.Get(obj, name), meta.FindStatusCondition(before, name)
		if now == nil || was != nil && was.Status == now.Status && was.Reason == now.Reason {
			continue
		}
		kind := corev1.EventTypeNormal
		if worse(now) {
			kind = corev1.EventTypeWarning
		}
		text := name + " is " + string(now.Status)
		if now.Message != "" {
			text += ": " + now.Message
		}
		k.events.Eventf(obj, nil, kind, now.Reason, name, "%s", clip.Text(text, maxNote))
	}
}

// worse reports whether a condition is one to look at: not as it should be, and no step on
// the way there.
func worse(c *metav1.Condition) bool {
	switch c.Type {
	case infrav1.ConditionInterrupted, infrav1.ConditionCreateFailed:
		return c.Status == metav1.ConditionTrue
	case infrav1.ConditionDraining:
		return false
	}
	steps := []string{reasonCreating, reasonNotReady, reasonIncomplete, reasonScaling, reasonEnded, reasonDeleting}
	return c.Status != metav1.ConditionTrue && !strings.HasPrefix(c.Reason, "WaitingFor") && !slices.Contains(steps, c.Reason)
}
