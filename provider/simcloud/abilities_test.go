package simcloud_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

func TestImages(t *testing.T) {
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := simcloud.New(&simcloud.Options{Images: []simcloud.Image{
		{ID: "a1", Owner: "me", Name: "web-1", Arch: nstance.AMD64, Created: day},
		{ID: "a2", Owner: "me", Name: "web-2", Arch: nstance.AMD64, Created: day.Add(time.Hour)},
		{ID: "b1", Owner: "me", Name: "web-3", Arch: nstance.ARM64, Created: day.Add(2 * time.Hour)},
		{ID: "c1", Owner: "you", Name: "web-9", Arch: nstance.AMD64, Created: day.Add(3 * time.Hour)},
	}})
	defer c.Close()
	for _, q := range []struct {
		query nstance.ImageQuery
		want  string
	}{
		{nstance.ImageQuery{}, "c1"},
		{nstance.ImageQuery{Owner: "me"}, "b1"},
		{nstance.ImageQuery{Owner: "me", Arch: nstance.AMD64}, "a2"},
		{nstance.ImageQuery{Name: "web-1"}, "a1"},
		{nstance.ImageQuery{Name: "web-*", Arch: nstance.ARM64}, "b1"},
		{nstance.ImageQuery{Name: "*-2"}, "a2"},
		{nstance.ImageQuery{Name: "w*b*1"}, "a1"},
		{nstance.ImageQuery{Name: "web"}, ""},
		{nstance.ImageQuery{Owner: "unknown"}, ""},
	} {
		got, err := c.ResolveImage(t.Context(), q.query)
		require.Equal(t, q.want, got, "%+v", q.query)
		require.Equal(t, q.want == "", nstance.CodeOf(err) == nstance.NotFound, "%v", err)
	}
	s := spec(t, "")
	s.Image = "a1"
	c.SetImages()
	_, err := c.Create(t.Context(), s)
	require.NoError(t, err, "without images every image is permitted")
	c.SetImages(simcloud.Image{ID: "a2"})
	s = spec(t, "")
	s.Image = "a1"
	_, err = c.Create(t.Context(), s)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "image")
}

func TestSubnetsFillUp(t *testing.T) {
	c := simcloud.New(&simcloud.Options{Subnets: map[string]int{"small": 1}})
	defer c.Close()
	s := spec(t, "")
	s.Subnet = "small"
	m, err := c.Create(t.Context(), s)
	require.NoError(t, err)
	free, err := c.FreeAddresses(t.Context(), []string{"small", "other"})
	require.NoError(t, err)
	require.Equal(t, map[string]int{"small": 0}, free)
	s = spec(t, "")
	s.Subnet = "small"
	_, err = c.Create(t.Context(), s)
	require.ErrorIs(t, err, nstance.Capacity)
	require.NoError(t, c.Delete(t.Context(), m))
	_, err = c.Create(t.Context(), s)
	require.NoError(t, err, "the address is free again")
}

func TestSubnetZones(t *testing.T) {
	c := simcloud.New(&simcloud.Options{Zones: map[string]string{"a": "zone-1", "b": "zone-2"}})
	defer c.Close()
	zones, err := c.SubnetZones(t.Context(), []string{"a", "b", "other"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "zone-1", "b": "zone-2"}, zones)
	c.Inject(simcloud.Fault{Op: "subnet_zones"})
	_, err = c.SubnetZones(t.Context(), []string{"a"})
	require.ErrorIs(t, err, nstance.Unavailable)
}

func TestShiftedZones(t *testing.T) {
	c := simcloud.New(nil)
	defer c.Close()
	shifts, err := c.ShiftedZones(t.Context())
	require.NoError(t, err)
	require.Empty(t, shifts)
	require.Zero(t, c.Count(simcloud.OpShiftedZones))
	shift := nstance.ZoneShift{Zone: "zone-1", Reason: "power"}
	c.SetShiftedZones(shift)
	shifts, err = c.ShiftedZones(t.Context())
	require.NoError(t, err)
	require.Equal(t, []nstance.ZoneShift{shift}, shifts)
	c.Inject(simcloud.Fault{Op: simcloud.OpShiftedZones})
	_, err = c.ShiftedZones(t.Context())
	require.ErrorIs(t, err, nstance.Unavailable)
	c.SetShiftedZones()
	shifts, err = c.ShiftedZones(t.Context())
	require.NoError(t, err)
	require.Empty(t, shifts)
}

func TestTypes(t *testing.T) {
	c := simcloud.New(&simcloud.Options{Types: map[string][]nstance.Arch{"small": {nstance.ARM64}}})
	defer c.Close()
	for kind, arch := range map[string]nstance.Arch{"small": nstance.AMD64, "large": nstance.ARM64} {
		s := spec(t, "")
		s.InstanceType, s.Arch = kind, arch
		_, err := c.Create(t.Context(), s)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "instance_type")
	}
}

func TestDeletedWhileMember(t *testing.T) {
	c := simcloud.New(&simcloud.Options{Balancers: []string{"lb"}, Shutdown: simcloud.Delay{Min: time.Hour}})
	defer c.Close()
	m, err := c.Create(t.Context(), spec(t, ""))
	require.NoError(t, err)
	c.SetBalancer("lb", true, "unmanaged machine")
	require.NoError(t, c.JoinBalancer(t.Context(), nstance.LoadBalancer{ID: "lb"}, []nstance.Machine{m}))
	require.Equal(t, []string{m.ProviderID, "unmanaged machine"}, c.AttachedTo("lb"))
	require.NoError(t, c.Delete(t.Context(), m))
	require.Equal(t, []nstance.InstanceID{m.ID}, c.DeletedWhileMember())
	require.NoError(t, c.Kill(m.ID))
	require.Equal(t, []string{"unmanaged machine"}, c.AttachedTo("lb"), "deleted machines are removed")
	c.SetBalancer("lb", false)
	require.ErrorIs(t, c.LeaveBalancer(t.Context(), nstance.LoadBalancer{ID: "lb"}, nil), nstance.NotFound)
}
