package machines_test

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/machines"
)

// A folder is a machine that is nothing but its part.
type folder struct {
	*machines.Part
	fails   error
	stopped bool
	set     *machines.Set[*folder]
}

func (f *folder) Create() error {
	err := errors.Join(f.Begin(), f.fails)
	if err != nil {
		_ = f.set.Remove(f)
		return machines.ClassifyCreate(err)
	}
	return nil
}

func (f *folder) Stop() { f.stopped, f.View.Status = true, nstance.StatusDeleting }

type host struct {
	*machines.Set[*folder]
	fails error
	last  *folder
}

func newHost(t testing.TB, most int) *host {
	return &host{Set: machines.New[*folder](machines.Options{
		Root: t.TempDir(), Prefix: "vm", Zone: "here", Address: netip.MustParseAddr("127.0.0.1"), Protocol: imds.AWS, MaxMachines: most,
	})}
}

func (h *host) create(ctx context.Context, spec nstance.MachineSpec, name machines.Name) (nstance.Machine, error) {
	return h.Create(ctx, spec, name, func(p *machines.Part) *folder {
		h.last = &folder{Part: p, fails: h.fails, set: h.Set}
		return h.last
	})
}

func newSpec(t testing.TB) nstance.MachineSpec {
	id, err := nstance.NewInstanceID("web", time.Now())
	require.NoError(t, err)
	return nstance.MachineSpec{ID: id, Group: "web", Owner: nstance.Owner{Shard: "s1"}, Market: nstance.Spot}
}

func TestSet(t *testing.T) {
	h, spec := newHost(t, 2), newSpec(t)
	m, err := h.create(t.Context(), spec, machines.Name{})
	require.NoError(t, err)
	require.Equal(t, "vm-1", m.ProviderID)
	require.Equal(t, "here", m.Zone)
	first := h.last

	t.Run("the same spec is the same machine", func(t *testing.T) {
		again, err := h.create(t.Context(), spec, machines.Name{})
		require.NoError(t, err)
		require.Equal(t, m, again)
		other := spec
		other.Image = "other"
		_, err = h.create(t.Context(), other, machines.Name{})
		require.ErrorIs(t, err, nstance.Conflict)
	})
	t.Run("a name replaces handle and zone, and the set has a limit", func(t *testing.T) {
		named, err := h.create(t.Context(), newSpec(t), machines.Name{Handle: "i-1", Zone: "there"})
		require.NoError(t, err)
		require.Equal(t, []string{"i-1", "there"}, []string{named.ProviderID, named.Zone})
		_, err = h.create(t.Context(), newSpec(t), machines.Name{})
		require.ErrorIs(t, err, nstance.Capacity)
		require.NoError(t, h.Remove(h.last))
	})
	t.Run("reclaims are announced, and withdrawn", func(t *testing.T) {
		require.NoError(t, h.Interrupt(spec.ID, "stop", 90*time.Second))
		require.NoError(t, h.Interrupt(spec.ID, "", time.Minute))
		at := <-first.Reclaims
		require.Zero(t, at.Nanosecond(), "aws announces full seconds")
		require.WithinDuration(t, time.Now().Add(time.Minute), at, 10*time.Second, "the later call counts")
		require.NoError(t, h.Withdraw(spec.ID))
		require.Zero(t, <-first.Reclaims)
		require.ErrorIs(t, h.Interrupt(spec.ID, "explode", 0), nstance.Invalid)
	})
	t.Run("a delete needs the machine's marks", func(t *testing.T) {
		stranger := m
		stranger.Owner.Shard = "s2"
		require.ErrorIs(t, h.Delete(t.Context(), stranger), nstance.Conflict)
		require.False(t, first.stopped)
		require.NoError(t, h.Delete(t.Context(), nstance.Machine{ID: m.ID, Owner: m.Owner}), "without a handle, by its ID")
		require.True(t, first.stopped)
		require.ErrorIs(t, h.Interrupt(spec.ID, "", 0), nstance.Conflict, "it is ending")
	})
	t.Run("nothing remains", func(t *testing.T) {
		require.NoError(t, h.Remove(first))
		require.NoDirExists(t, first.Dir)
		_, err := http.Get("http://" + first.Address)
		require.Error(t, err)
		_, err = h.Get(t.Context(), spec.ID)
		require.ErrorIs(t, err, nstance.NotFound)
		h.Close()
		h.Wait()
		_, err = h.Get(t.Context(), spec.ID)
		require.ErrorIs(t, err, nstance.Unavailable)
	})
}

func TestCreateFails(t *testing.T) {
	for code, fails := range map[nstance.Code]error{nstance.Quota: syscall.EMFILE, nstance.Invalid: os.ErrNotExist, nstance.Internal: errors.New("sorry")} {
		h, spec := newHost(t, 0), newSpec(t)
		h.fails = fails
		_, err := h.create(t.Context(), spec, machines.Name{})
		require.ErrorIs(t, err, code)
		_, err = h.Get(t.Context(), spec.ID)
		require.ErrorIs(t, err, nstance.NotFound)
		h.Wait()
	}
}

// TestViewsAreCopies: what a caller does with a machine's view changes no other one.
func TestViewsAreCopies(t *testing.T) {
	h, spec := newHost(t, 0), newSpec(t)
	m, err := h.create(t.Context(), spec, machines.Name{})
	require.NoError(t, err)
	m.Addresses[0] = netip.MustParseAddr("192.0.2.1")
	again, err := h.Get(t.Context(), spec.ID)
	require.NoError(t, err)
	require.Equal(t, netip.MustParseAddr("127.0.0.1"), again.Addresses[0])
	require.NoError(t, h.Remove(h.last))
}

// TestOneOwnersMachines: a list has the machines of one owner, and Close stops all of them.
func TestOneOwnersMachines(t *testing.T) {
	h, spec, other := newHost(t, 0), newSpec(t), newSpec(t)
	other.Owner.Shard = "s2"
	_, err := h.create(t.Context(), spec, machines.Name{})
	require.NoError(t, err)
	mine := h.last
	_, err = h.create(t.Context(), other, machines.Name{})
	require.NoError(t, err)
	var ids []nstance.InstanceID
	for m, err := range h.List(t.Context(), spec.Owner) {
		require.NoError(t, err)
		ids = append(ids, m.ID)
	}
	require.Equal(t, []nstance.InstanceID{spec.ID}, ids)
	h.Close()
	for _, m := range []*folder{mine, h.last} {
		require.True(t, m.stopped)
		require.NoError(t, h.Remove(m))
	}
	h.Wait()
}
