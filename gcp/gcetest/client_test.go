package gcetest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	compute "google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"

	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/gcp/internal/discovery"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// TestOlderClient drives the cloud with Google's older client, which others
// generated from the API's description.
func TestOlderClient(t *testing.T) {
	c := open(t, &gcetest.Options{PageSize: 5, Delays: testcloud.Delays{Start: time.Millisecond, Delete: time.Millisecond}})
	server := httptest.NewServer(discovery.Handler(t, c))
	t.Cleanup(server.Close)
	s, err := compute.NewService(t.Context(), option.WithHTTPClient(http.DefaultClient), option.WithEndpoint(server.URL+"/compute/v1/"))
	require.NoError(t, err)
	const p, z = "test-project", "us-central1-a"
	done := func(op *compute.Operation) {
		require.Eventually(t, func() bool {
			op, err := s.ZoneOperations.Get(p, z, op.Name).Context(t.Context()).Do()
			return err == nil && op.Status == "DONE" && op.Error == nil
		}, time.Minute, time.Millisecond)
	}
	for i := range 12 {
		op, err := s.Instances.Insert(p, z, &compute.Instance{
			Name: fmt.Sprintf("vm-%02d", i), MachineType: "zones/us-central1-a/machineTypes/e2-small",
			Labels: map[string]string{"role": []string{"web", "db"}[i%2], "team": "a"},
			Disks: []*compute.AttachedDisk{{Boot: true, AutoDelete: true, InitializeParams: &compute.AttachedDiskInitializeParams{
				SourceImage: "projects/debian-cloud/global/images/debian-12-bookworm-v20261101", DiskSizeGb: 20,
			}}},
			NetworkInterfaces: []*compute.NetworkInterface{{AccessConfigs: []*compute.AccessConfig{{Type: "ONE_TO_ONE_NAT"}}}},
			Scheduling:        &compute.Scheduling{ProvisioningModel: "SPOT", InstanceTerminationAction: "STOP"},
		}).Context(t.Context()).Do()
		require.NoError(t, err)
		done(op)
	}
	list := func(filter string) (names []string, pages int) {
		require.NoError(t, s.Instances.List(p, z).Filter(filter).Pages(t.Context(), func(l *compute.InstanceList) error {
			pages++
			for _, i := range l.Items {
				names = append(names, i.Name)
			}
			return nil
		}))
		return names, pages
	}
	names, pages := list("")
	require.Len(t, names, 12)
	require.Equal(t, 3, pages)
	for filter, want := range map[string]int{
		`(labels.role = "web") (labels.team = "a")`: 6, `labels.role = "web" AND labels.team = "b"`: 0, `labels.role != "web"`: 6,
		`labels.role:*`: 12, `labels.none:*`: 0, `name eq "vm-0.*"`: 10, `name eq "vm"`: 0, `name ne vm-11`: 11, `name = vm-03`: 1,
	} {
		names, _ := list(filter)
		require.Len(t, names, want, filter)
	}
	vm, err := s.Instances.Get(p, z, "vm-03").Context(t.Context()).Do()
	require.NoError(t, err)
	require.Equal(t, "RUNNING", vm.Status)
	require.True(t, vm.Scheduling.Preemptible)
	require.NotEmpty(t, vm.NetworkInterfaces[0].NetworkIP)
	byNumber, err := s.Instances.Get(p, z, fmt.Sprint(vm.Id)).Context(t.Context()).Do()
	require.NoError(t, err)
	require.Equal(t, vm.Name, byNumber.Name)
	op, err := s.Instances.Delete(p, z, "vm-03").Context(t.Context()).Do()
	require.NoError(t, err)
	done(op)
	_, err = s.Instances.Get(p, z, "vm-03").Context(t.Context()).Do()
	var refused *googleapi.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "The resource 'projects/test-project/zones/us-central1-a/instances/vm-03' was not found", refused.Message)
	require.Len(t, c.Disks(), 11)
	subnet, err := s.Subnetworks.Get(p, "us-central1", "default").Views("WITH_UTILIZATION").Context(t.Context()).Do()
	require.NoError(t, err)
	require.EqualValues(t, 4096-4-11, subnet.UtilizationDetails.Ipv4Utilizations[0].TotalFreeIp)
}
