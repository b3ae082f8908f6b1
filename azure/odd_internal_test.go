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
