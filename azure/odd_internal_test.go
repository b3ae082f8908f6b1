package azure

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// says answers with a status and a body.
func says(status int, body string) testcloud.Fault {
	return testcloud.Fault{Answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}}
}

// TestFormsOfRefusals: what a refusal says is read in whatever form it comes.
func TestFormsOfRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		fault testcloud.Fault
		code  nstance.Code
		words string
	}{
		"not wrapped":           {says(422, `{"code": "SomethingNew", "message": "the rack is full of cats"}`), nstance.Invalid, "SomethingNew: the rack is full of cats"},
		"not wrapped and known": {says(409, `{"code": "SkuNotAvailable", "message": "not here"}`), nstance.Capacity, "not here"},
		"of the gateway":        {says(429, `{"Message": "slow down, please"}`), nstance.Throttled, "slow down, please"},
		"text":                  {says(422, "the rack is full of cats"), nstance.Invalid, "the rack is full of cats"},
		"another error":         {says(401, `{"error": "invalid_client", "error_description": "it has expired"}`), nstance.Denied, "it has expired"},
		"nothing":               {testcloud.Blank(422), nstance.Invalid, "status 422"},
		"wrapped without code":  {says(422, `{"error": {"message": "the rack is full of cats"}}`), nstance.Invalid, "the rack is full of cats"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud, p := openTest(t)
			cloud.Faults.Next("VirtualMachinesClient.BeginCreateOrUpdate", c.fault)
			_, err := p.Create(t.Context(), testSpec(t))
			require.Equal(t, c.code, nstance.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, c.words)
			require.NotContains(t, err.Error(), "<html", "a page for people says nothing")
		})
	}
}

// TestOthersNotFound: that the image or the disk of a machine is not found does not say that the
// machine is gone, whatever is asked for.
func TestOthersNotFound(t *testing.T) {
	other := says(404, `{"error": {"code": "ResourceNotFound", "message": "The Resource 'Microsoft.Compute/disks/base' under resource group 'machines' was not found."}}`)
	nested := says(404, `{"error": {"code": "SomethingNew", "message": "no", "details": [{"code": "NotFound", "message": "the image"}]}}`)
	for name, fault := range map[string]testcloud.Fault{"named": other, "inside": nested, "page": testcloud.Page(404)} {
		t.Run(name, func(t *testing.T) {
			cloud, p := openTest(t)
			s := testSpec(t)
			s.Park = nstance.ParkStopped
			m, err := p.Create(t.Context(), s)
			require.NoError(t, err)
			cloud.Faults.Next("VirtualMachinesClient.Get", fault, fault)
			_, err = p.Get(t.Context(), m.ID)
			for _, err := range []error{err, p.Delete(t.Context(), m)} {
				require.Error(t, err)
				require.NotErrorIs(t, err, nstance.NotFound)
			}
			cloud.Faults.Next("VirtualMachinesClient.BeginDeallocate", fault)
			require.NotErrorIs(t, p.Park(t.Context(), m, nstance.ParkStopped), nstance.NotFound)
			require.NoError(t, p.Park(t.Context(), m, nstance.ParkStopped))
			require.Eventually(t, func() bool {
				m, err := p.Get(t.Context(), m.ID)
				return err == nil && m.Status == nstance.StatusStopped
			}, time.Minute, time.Millisecond)
			cloud.Faults.Next("VirtualMachinesClient.BeginStart", fault)
			err = p.Wake(t.Context(), m)
			require.Error(t, err)
			require.NotErrorIs(t, err, nstance.NotFound)
			require.Len(t, cloud.Machines(), 1)
		})
	}
}

// TestListsThatAreNone: neither an answer without a list, nor pages that go on for ever, is a list.
func TestListsThatAreNone(t *testing.T) {
	for name, body := range map[string]string{
		"nothing": `{}`, "null": `{"value": null}`, "an error inside": `{"error": {"code": "X", "message": "no"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			cloud, p := openTest(t)
			_, err := p.Create(t.Context(), testSpec(t))
			require.NoError(t, err)
			cloud.Faults.Next("VirtualMachinesClient.NewListPager", says(200, body))
			require.ErrorIs(t, lastOf(t, p), nstance.Unavailable)
			require.NoError(t, lastOf(t, p))
		})
	}
	t.Run("the same page", func(t *testing.T) {
		require.ErrorIs(t, checkPage([]*armcompute.VirtualMachine{}, "again", "again"), nstance.Unavailable)
		require.NoError(t, checkPage([]*armcompute.VirtualMachine{}, "second", "first"))
		require.NoError(t, checkPage([]*armcompute.VirtualMachine{}, "", ""))
	})
}

// lastOf lists the machines of the tests, and returns the error at the end.
func lastOf(t *testing.T, p *Provider) (last error) {
	t.Helper()
	for _, err := range p.List(t.Context(), testSpec(t).Owner) {
		last = err
	}
	return last
}

// TestMarksRemoved: a machine whose tags were removed, and one of which Azure shows nothing, are
// not gone.
func TestMarksRemoved(t *testing.T) {
	cloud, p := openTest(t)
	m, err := p.Create(t.Context(), testSpec(t))
	require.NoError(t, err)
	cloud.Faults.Next("VirtualMachinesClient.Get", says(200, fmt.Sprintf(`{"id": %q, "name": %q, "properties": {}}`, p.o.handle(string(m.ID)), m.ID)), says(200, `{}`))
	_, err = p.Get(t.Context(), m.ID)
	require.ErrorIs(t, err, nstance.Conflict)
	_, err = p.Get(t.Context(), m.ID)
	require.ErrorIs(t, err, nstance.Unavailable)
}

// TestNothingShown: an answer that shows no resource says nothing of its owner or its members, and
// does no harm.
func TestNothingShown(t *testing.T) {
	for _, body := range []string{"", "null", `{}`, `{"id": "/x"}`, `{"error": {"code": "X", "message": "no"}}`} {
		t.Run(body, func(t *testing.T) {
			cloud, p := openTest(t)
			m, err := p.Create(t.Context(), testSpec(t))
			require.NoError(t, err)
			server, err := p.Create(t.Context(), testSpec(t))
			require.NoError(t, err)
			p.o.Interface = strings.Replace(server.ProviderID, "Microsoft.Compute/virtualMachines", "Microsoft.Network/networkInterfaces", 1)

			cloud.Faults.Next("VirtualMachinesClient.Get", says(200, body))
			require.ErrorIs(t, p.Delete(t.Context(), m), nstance.Unavailable)
			cloud.Faults.Next("LoadBalancerBackendAddressPoolsClient.Get", says(200, body))
			_, err = p.BalancerMembers(t.Context(), nstance.LoadBalancer{Name: "web", ID: testPool})
			require.ErrorIs(t, err, nstance.Unavailable)
			for _, call := range []string{"GalleryImagesClient.NewListByGalleryPager", "GalleryImageVersionsClient.NewListByGalleryImagePager"} {
				cloud.Faults.Next(call, says(200, body))
				_, err = p.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "images/shared", Name: "web-*"})
				require.ErrorIs(t, err, nstance.Unavailable)
			}
			cloud.Faults.Next("ResourceSKUsClient.NewListPager", says(200, body))
			_, err = p.TypeArchs(t.Context(), []string{"Standard_D2s_v5"})
			require.ErrorIs(t, err, nstance.Unavailable)
			cloud.Faults.Next("VirtualNetworksClient.NewListUsagePager", says(200, body))
			_, err = p.FreeAddresses(t.Context(), []string{testSubnet})
			require.ErrorIs(t, err, nstance.Unavailable)
			cloud.Faults.Next("InterfacesClient.Get", testcloud.Fault{}, says(200, body))
			require.ErrorIs(t, p.TakeAddress(t.Context(), m.Addresses[0].String()), nstance.Unavailable)
		})
	}
}

// TestMoved: a redirect that leads nowhere does not say that nothing was made.
func TestMoved(t *testing.T) {
	cloud, p := openTest(t)
	cloud.Faults.Next("VirtualMachinesClient.BeginCreateOrUpdate", says(307, ""))
	_, err := p.Create(t.Context(), testSpec(t))
	require.ErrorIs(t, err, nstance.Ambiguous)
}

// TestCopies: a copy of a machine has its tags, and another name.
func TestCopies(t *testing.T) {
	cloud, p := openTest(t)
	s := testSpec(t)
	r, err := p.o.request(s)
	require.NoError(t, err)
	tags, err := json.Marshal(r.tags())
	require.NoError(t, err)
	cloud.Faults.Next("VirtualMachinesClient.NewListPager", says(200, fmt.Sprintf(`{"value": [{"id": "/x", "name": "copy", "tags": %s}, {"id": "/y", "name": %q, "tags": %s}]}`, tags, strings.ToUpper(string(s.ID)), tags)))
	var found []string
	for m, err := range p.List(t.Context(), s.Owner) {
		require.NoError(t, err)
		found = append(found, m.ProviderID)
	}
	require.Equal(t, []string{p.o.handle(string(s.ID))}, found)
}

// TestTagsOfPolicy: a policy may give tags to a disk that had none.
func TestTagsOfPolicy(t *testing.T) {
	cloud, p := openTest(t)
	s := testSpec(t)
	cloud.Faults.Next("DisksClient.Get", says(200, fmt.Sprintf(`{"id": "/x", "name": %q, "tags": {"costcenter": "7"}, "properties": {"provisioningState": "Deleting"}}`, s.ID)))
	require.NoError(t, p.Delete(t.Context(), nstance.Machine{ID: s.ID, Owner: s.Owner}), "it is being deleted")
	require.ErrorIs(t, p.Delete(t.Context(), nstance.Machine{ID: s.ID, Owner: s.Owner}), nstance.NotFound)
}

// TestSeveralFailures: of several failures of one operation the one counts that says most, and
// all are quoted.
func TestSeveralFailures(t *testing.T) {
	shown := func(codes ...string) view {
		out := &armcompute.VirtualMachineInstanceView{}
		for _, code := range codes {
			out.Statuses = append(out.Statuses, &armcompute.InstanceViewStatus{Code: new("ProvisioningState/failed" + code), Message: new("says" + code)})
		}
		return viewOf(out)
	}
	for _, codes := range [][]string{{"/AllocationFailed", "/SomethingNew"}, {"/SomethingNew", "/AllocationFailed"}, {"", "/AllocationFailed"}} {
		v := shown(codes...)
		require.Equal(t, nstance.LossCapacity, lossOf(v.failure), codes)
		for _, code := range codes {
			require.Contains(t, v.words, "says"+code)
		}
	}
	v := shown("")
	require.Empty(t, v.failure)
	require.Equal(t, "says", v.words)
}

// TestTokenNotAnswered: where tokens come from may not answer for a while, which is no refusal.
func TestTokenNotAnswered(t *testing.T) {
	for status, want := range map[int]nstance.Code{0: nstance.Unavailable, 400: nstance.Denied, 401: nstance.Denied, 408: nstance.Unavailable, 429: nstance.Unavailable, 503: nstance.Unavailable} {
		is := &azidentity.AuthenticationFailedError{}
		if status != 0 {
			is.RawResponse = &http.Response{StatusCode: status, Body: http.NoBody, Request: httptest.NewRequest(http.MethodPost, "https://login.example/token", nil)}
		}
		require.Equal(t, want, nstance.CodeOf(readError(fmt.Errorf("token: %w", is))), status)
		require.False(t, errors.Is(createError(is), nstance.Denied) && want != nstance.Denied, status)
	}
}

// TestDeallocatedSpot: deallocated spot capacity was reclaimed, whatever has failed beside. Low is
// the older word for spot.
func TestDeallocatedSpot(t *testing.T) {
	_, p := openTest(t)
	for _, priority := range []armcompute.VirtualMachinePriorityTypes{armcompute.VirtualMachinePriorityTypesSpot, armcompute.VirtualMachinePriorityTypesLow} {
		m := p.machine(&armcompute.VirtualMachine{Properties: &armcompute.VirtualMachineProperties{
			Priority: &priority, ProvisioningState: new("Failed"), InstanceView: &armcompute.VirtualMachineInstanceView{Statuses: []*armcompute.InstanceViewStatus{
				{Code: new("ProvisioningState/failed/AllocationFailed")}, {Code: new("PowerState/deallocated")},
			}},
		}})
		require.Equal(t, nstance.Spot, m.Market)
		require.Equal(t, nstance.LossReclaimed, m.Cause)
	}
}

// TestPowerStateOfAnother: a power state is that of the same machine, and of no other that has its
// name by then.
func TestPowerStateOfAnother(t *testing.T) {
	cloud, p := openTest(t)
	s := testSpec(t)
	_, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	cloud.Faults.Next("VirtualMachinesClient.NewListAllPager", says(200, fmt.Sprintf(
		`{"value": [{"id": %q, "name": %q, "properties": {"vmId": "another", "instanceView": {"statuses": [{"code": "PowerState/deallocated"}]}}}]}`, p.o.handle(string(s.ID)), s.ID)))
	for m, err := range p.List(t.Context(), s.Owner) {
		require.NoError(t, err)
		require.Equal(t, nstance.StatusUnknown, m.Status)
	}
}

// TestHandleInAnotherCase: Azure writes the names of groups in any case.
func TestHandleInAnotherCase(t *testing.T) {
	cloud, p := openTest(t)
	m, err := p.Create(t.Context(), testSpec(t))
	require.NoError(t, err)
	m.ProviderID = strings.ToUpper(p.o.handle("")) + string(m.ID)
	require.NoError(t, p.Delete(t.Context(), m))
	require.Empty(t, cloud.Machines())
}

// TestUnknownParts: parts that another version has written are not read as fewer.
func TestUnknownParts(t *testing.T) {
	known := parts{disks: 2, nics: 1, ipv4: true}
	got, err := readParts(marks{tagParts: known.String()})
	require.NoError(t, err)
	require.Equal(t, known, got)
	for _, text := range []string{known.String() + ",tapes=1", "disks=2", "disks=65,interfaces=0,ipv4=false,ipv6=false", "disks=-1,interfaces=0,ipv4=false,ipv6=false"} {
		_, err := readParts(marks{tagParts: text})
		require.ErrorIs(t, err, nstance.Conflict, text)
	}
}

// TestPoolOfPrimary: the primary configuration of an interface joins a pool, wherever it stands.
func TestPoolOfPrimary(t *testing.T) {
	configuration := func(primary bool) *armnetwork.InterfaceIPConfiguration {
		return &armnetwork.InterfaceIPConfiguration{Properties: &armnetwork.InterfaceIPConfigurationPropertiesFormat{Primary: &primary}}
	}
	other, primary := configuration(false), configuration(true)
	changed, err := joinPool(&armnetwork.Interface{Properties: &armnetwork.InterfacePropertiesFormat{IPConfigurations: []*armnetwork.InterfaceIPConfiguration{other, primary}}}, "pool")
	require.NoError(t, err)
	require.True(t, changed)
	require.Empty(t, other.Properties.LoadBalancerBackendAddressPools)
	require.Len(t, primary.Properties.LoadBalancerBackendAddressPools, 1)
}
