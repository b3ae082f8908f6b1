//go:build kube

package operatorclouds_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/internal/imds"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// TestKubeClouds has a MachineDeployment buy a spot machine from each cloud, through its real
// provider. The cloud takes it back, with notice and without: each time the Machine says so,
// a MachineHealthCheck has it replaced, and the cloud has nothing left of it. A machine that
// cannot be created says what the cloud has answered.
func TestKubeClouds(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", ec2test.DefaultCredential.AccessKeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", ec2test.DefaultCredential.SecretAccessKey)
	for _, s := range sites {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, s.protocol, s.open)
			w.deployment("scarce")
			w.deployment("nodes")
			machine, m := w.untilRunning("nodes")
			w.requireSpot(machine, m)

			interrupted := w.untilRemediated(machine, func() { require.NoError(t, w.Reclaim(m.Handle, 2*time.Minute)) })
			require.Equal(t, "Reclaimed", interrupted.Reason)
			w.requireNothingLeft(m)

			w.hypervisor.noNotice.Store(true)
			machine, m = w.untilRunning("nodes")
			w.requireSpot(machine, m)
			interrupted = w.untilRemediated(machine, func() { require.NoError(t, w.Reclaim(m.Handle, 0)) })
			require.Equal(t, "MachineGone", interrupted.Reason)
			w.requireNothingLeft(m)
			w.untilRunning("nodes")

			w.requireRefused("scarce")
		})
	}
	for name, test := range map[string]func(*testing.T){"refused late": refusedLate, "given up late": givenUpLate} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// acceptedOnly returns a world in which AWS has accepted the machine of a deployment that it
// has no capacity to start, and the NstanceMachine as it was then.
func acceptedOnly(t *testing.T, group string) (w *world, m *infrav1.NstanceMachine) {
	w = newWorld(t, imds.AWS, onAWS)
	w.Cloud.(*ec2test.Cloud).FailNextBoots(ec2test.StateReason{Code: "Server.InsufficientInstanceCapacity", Message: "no capacity"})
	w.deployment(group)
	w.until("a machine is accepted", func() bool {
		m = w.nstanceMachine(group)
		return m != nil && m.Spec.ProviderID != ""
	})
	return w, m
}

// refusedLate: an instance gets another machine later, whose ID its Machine then has.
func refusedLate(t *testing.T) {
	w, accepted := acceptedOnly(t, "nodes")
	machine, m := w.untilRunning("nodes")
	w.requireSpot(machine, m)
	require.Equal(t, accepted.Spec.InstanceID, string(m.ID))
	require.NotEqual(t, accepted.Spec.ProviderID, machine.Spec.ProviderID)
}

// givenUpLate: an instance without time for another machine is given up for another instance
// of the same Machine.
func givenUpLate(t *testing.T) {
	w, accepted := acceptedOnly(t, "hasty")
	w.until("another instance is chosen", func() bool {
		m := w.nstanceMachine("hasty")
		return m != nil && m.Spec.InstanceID != "" && m.Spec.InstanceID != accepted.Spec.InstanceID
	})
	require.Equal(t, accepted.Name, w.nstanceMachine("hasty").Name)
}

// nstanceMachine returns that of the Machine of a deployment; nil: there is none.
func (w *world) nstanceMachine(deployment string) *infrav1.NstanceMachine {
	w.Helper()
	machine, m := w.machine(deployment), &infrav1.NstanceMachine{}
	if machine == nil || w.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: machine.Spec.InfrastructureRef.Name}, m) != nil {
		return nil
	}
	return m
}

// requireSpot: a Machine is a spot machine, at the cloud and for Cluster API.
func (w *world) requireSpot(machine *clusterv1.Machine, m testcloud.Machine) {
	w.Helper()
	require.Equal(w, w.spot, w.bought(m))
	require.Equal(w, w.providerID(m), machine.Spec.ProviderID)
	nm := &infrav1.NstanceMachine{}
	require.NoError(w, w.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: machine.Spec.InfrastructureRef.Name}, nm))
	require.Equal(w, new(true), nm.Status.Interruptible)
	node := &corev1.Node{}
	w.until("its node is interruptible", func() bool {
		return w.Get(w.Context(), client.ObjectKey{Name: machine.Status.NodeRef.Name}, node) == nil && metav1.HasLabel(node.ObjectMeta, clusterv1.InterruptibleLabel)
	})
	require.Equal(w, w.providerID(m), node.Spec.ProviderID)
}

// requireNothingLeft: the cloud has nothing of a machine any more.
func (w *world) requireNothingLeft(m testcloud.Machine) {
	w.Helper()
	var left []string
	w.until("nothing is left of "+m.Handle, func() bool {
		left = w.left(m)
		return len(left) == 0
	})
}

// requireRefused: the Machine of a deployment cannot be created, and says what the cloud has
// answered.
func (w *world) requireRefused(deployment string) {
	w.Helper()
	w.until("the cloud's answer is shown", func() bool {
		machine := w.machine(deployment)
		if machine == nil {
			return false
		}
		failed := meta.FindStatusCondition(machine.Status.Conditions, infrav1.ConditionCreateFailed)
		if failed == nil || failed.Status != metav1.ConditionTrue || !strings.Contains(failed.Message, w.refusal) {
			return false
		}
		w.Logf("%s: %s", failed.Reason, failed.Message)
		return true
	})
}
