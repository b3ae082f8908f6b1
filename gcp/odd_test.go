package gcp_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// says answers with status 200 and a JSON object.
func says(object map[string]any) testcloud.Fault {
	return testcloud.Fault{Answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object)
	}}
}

// done is an operation that has ended, with more fields.
func done(more map[string]any) map[string]any {
	out := map[string]any{"kind": "compute#operation", "name": "operation-1", "operationType": "insert", "status": "DONE", "insertTime": time.Now().Format(time.RFC3339Nano)}
	for k, v := range more {
		out[k] = v
	}
	return out
}

func errorsOf(codes ...string) map[string]any {
	var list []map[string]string
	for _, c := range codes {
		list = append(list, map[string]string{"code": c, "message": "says " + c})
	}
	return map[string]any{"error": map[string]any{"errors": list}}
}

// TestSeveralErrors: of several errors in one answer the one counts that says most, wherever it
// stands, and all are quoted.
func TestSeveralErrors(t *testing.T) {
	for name, c := range map[string]struct {
		fault testcloud.Fault
		code  nstance.Code
		words []string
	}{
		"the second is capacity":     {says(done(errorsOf("SOMETHING_NEW", "ZONE_RESOURCE_POOL_EXHAUSTED"))), nstance.Capacity, []string{"SOMETHING_NEW", "ZONE_RESOURCE_POOL_EXHAUSTED"}},
		"the second is quota":        {says(done(errorsOf("INVALID_FIELD_VALUE", "QUOTA_EXCEEDED"))), nstance.Quota, []string{"INVALID_FIELD_VALUE", "QUOTA_EXCEEDED"}},
		"the second is a rate":       {says(done(errorsOf("SOMETHING_NEW", "RESOURCE_OPERATION_RATE_EXCEEDED"))), nstance.Throttled, nil},
		"none is known":              {says(done(errorsOf("SOMETHING_NEW", "SOMETHING_ELSE"))), nstance.Invalid, []string{"SOMETHING_NEW", "SOMETHING_ELSE"}},
		"it failed without an error": {says(done(map[string]any{"httpErrorStatusCode": 403, "httpErrorMessage": "FORBIDDEN BY THE MOON"})), nstance.Invalid, []string{"FORBIDDEN BY THE MOON"}},
		"no operation":               {says(map[string]any{}), nstance.Ambiguous, nil},
		"in an answer": {testcloud.Fault{Answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"error": {"code": 400, "message": "first", "errors": [{"reason": "somethingNew", "message": "first"}, {"reason": "quotaExceeded", "message": "second"}]}}`))
		}}, nstance.Quota, []string{"second"}},
	} {
		t.Run(name, func(t *testing.T) {
			faults := &testcloud.Faults{}
			cloud, p := newCloud(t, &gcetest.Options{Faults: faults})
			faults.Next("instances.insert", c.fault)
			_, err := p.Create(t.Context(), spec(t))
			require.Equal(t, c.code, nstance.CodeOf(err), "%v", err)
			for _, words := range c.words {
				require.ErrorContains(t, err, words)
			}
			require.Empty(t, cloud.Machines())
		})
	}
}

// TestNothingShown: an answer that shows no machine, or another one, says nothing of its owner.
func TestNothingShown(t *testing.T) {
	for name, fault := range map[string]testcloud.Fault{
		"nothing": says(map[string]any{}), "another": says(map[string]any{"kind": "compute#instance", "name": "another", "id": "7"}),
	} {
		t.Run(name, func(t *testing.T) {
			faults := &testcloud.Faults{}
			cloud, p := newCloud(t, &gcetest.Options{Faults: faults})
			m, err := p.Create(t.Context(), spec(t))
			require.NoError(t, err)
			faults.Next("instances.get", fault, fault)
			_, err = p.Get(t.Context(), m.ID)
			require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "%v", err)
			err = p.Delete(t.Context(), m)
			require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "%v", err)
			require.Len(t, cloud.Machines(), 1)
		})
	}
}

// TestNoType: an answer that shows no machine type says nothing of its architecture, and one that
// shows no subnet nothing of its addresses.
func TestNoType(t *testing.T) {
	faults := &testcloud.Faults{}
	_, p := newCloud(t, &gcetest.Options{Faults: faults})
	faults.Next("machineTypes.get", says(map[string]any{}))
	_, err := p.TypeArchs(t.Context(), []string{spec(t).InstanceType})
	require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "%v", err)
	archs, err := p.TypeArchs(t.Context(), []string{spec(t).InstanceType})
	require.NoError(t, err)
	require.Len(t, archs, 1)
	subnet := spec(t).Subnet
	faults.Next("subnetworks.get", says(map[string]any{}))
	_, err = p.FreeAddresses(t.Context(), []string{subnet})
	require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "%v", err)
	free, err := p.FreeAddresses(t.Context(), []string{subnet})
	require.NoError(t, err)
	require.Len(t, free, 1)
}

// TestSomethingElseExists: that a resource exists which the machine would have is a refusal, and
// no machine is looked for.
func TestSomethingElseExists(t *testing.T) {
	const disk = "The resource 'projects/test-project/zones/us-central1-a/disks/left-behind' already exists"
	t.Run("refused", func(t *testing.T) {
		faults := &testcloud.Faults{}
		_, p := newCloud(t, &gcetest.Options{Faults: faults})
		faults.Next("instances.insert", testcloud.Fault{Answer: gcetest.Refuse(http.StatusConflict, "alreadyExists", disk)})
		_, err := p.Create(t.Context(), spec(t))
		require.Equal(t, nstance.Invalid, nstance.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "left-behind")
	})
	t.Run("failed later", func(t *testing.T) {
		cloud, p := newCloud(t, nil)
		cloud.FailOperation("insert", gcetest.OperationError{Code: "RESOURCE_ALREADY_EXISTS", Message: disk})
		s := spec(t)
		_, err := p.Create(t.Context(), s)
		if err == nil {
			_, err = p.Get(t.Context(), s.ID)
			require.ErrorIs(t, err, nstance.NotFound)
			require.Equal(t, nstance.LossInvalid, nstance.LossCauseOf(err), "no request of a person")
		}
		require.ErrorContains(t, err, "left-behind")
	})
}

// TestListsThatAreNone: neither an answer of something else, nor pages that go on for ever, is a
// list.
func TestListsThatAreNone(t *testing.T) {
	for name, object := range map[string]map[string]any{
		"nothing":       {},
		"the same page": {"kind": "compute#instanceList", "nextPageToken": "x"},
	} {
		t.Run(name, func(t *testing.T) {
			faults := &testcloud.Faults{}
			_, p := newCloud(t, &gcetest.Options{Faults: faults})
			faults.All("instances.list", says(object))
			var last error
			for _, err := range p.List(t.Context(), spec(t).Owner) {
				last = err
			}
			require.Equal(t, nstance.Unavailable, nstance.CodeOf(last), "%v", last)
		})
	}
}

// TestStranger: a machine of our name without our marks is neither ours nor proof of absence.
func TestStranger(t *testing.T) {
	faults := &testcloud.Faults{}
	_, p := newCloud(t, &gcetest.Options{Faults: faults})
	s := spec(t)
	faults.Next("instances.get", says(map[string]any{"kind": "compute#instance", "name": s.ID, "status": "RUNNING"}))
	_, err := p.Get(t.Context(), s.ID)
	require.ErrorIs(t, err, nstance.Conflict)
}

// TestMachineStatuses: a machine runs until the cloud says that it stops, and a word that decides nothing
// is unknown.
func TestMachineStatuses(t *testing.T) {
	faults := &testcloud.Faults{}
	_, p := newCloud(t, &gcetest.Options{Faults: faults})
	s := spec(t)
	for word, want := range map[string]nstance.MachineStatus{
		"STAGING": nstance.StatusPending, "PENDING_STOP": nstance.StatusRunning, "SUSPENDING": nstance.StatusStopping, "DEPROVISIONING": nstance.StatusStopping,
		"SUSPENDED": nstance.StatusStopped, "REPAIRING": nstance.StatusUnknown,
	} {
		faults.Next("instances.get", says(map[string]any{"kind": "compute#instance", "name": s.ID, "status": word, "labels": map[string]string{"nstance-instance-id": string(s.ID)}}))
		m, err := p.Get(t.Context(), s.ID)
		require.NoError(t, err)
		require.Equal(t, want, m.Status, word)
	}
}

// TestHistories: the operations since the machine was last made or started say why it ended, the
// cloud's own act before our delete of what was left.
func TestHistories(t *testing.T) {
	const preempted, hostError, guest = "compute.instances.preempted", "compute.instances.hostError", "compute.instances.guestTerminate"
	type act struct {
		kind    string
		machine int
	}
	for name, c := range map[string]struct {
		acts []act // from the first to the last
		want nstance.LossCause
	}{
		"deleted":                                {[]act{{"insert", 1}, {"delete", 1}}, nstance.LossRequested},
		"the host failed, and it was deleted":    {[]act{{"insert", 1}, {hostError, 1}, {"delete", 1}}, nstance.LossHost},
		"it ended by itself, and was deleted":    {[]act{{"insert", 1}, {guest, 1}, {"delete", 1}}, nstance.LossGuest},
		"it ended, was started, and was deleted": {[]act{{"insert", 1}, {guest, 1}, {"start", 1}, {"delete", 1}}, nstance.LossRequested},
		"an earlier machine was reclaimed":       {[]act{{"insert", 1}, {preempted, 1}, {"insert", 2}, {"delete", 2}}, nstance.LossRequested},
	} {
		t.Run(name, func(t *testing.T) {
			faults := &testcloud.Faults{}
			_, p := newCloud(t, &gcetest.Options{Faults: faults})
			var items []map[string]any
			for i, a := range c.acts {
				items = append(items, done(map[string]any{"name": "operation-" + strconv.Itoa(i), "operationType": a.kind, "targetId": strconv.Itoa(a.machine),
					"insertTime": time.Unix(int64(i), 0).UTC().Format(time.RFC3339Nano)}))
			}
			faults.Next("zoneOperations.list", says(map[string]any{"kind": "compute#operationList", "items": items}))
			_, err := p.Get(t.Context(), spec(t).ID)
			require.ErrorIs(t, err, nstance.NotFound)
			require.Equal(t, c.want, nstance.LossCauseOf(err))
		})
	}
}

// TestReclaimsUnread: a list that cannot say which of its dead machines were reclaimed fails.
func TestReclaimsUnread(t *testing.T) {
	faults := &testcloud.Faults{}
	cloud, p := newCloud(t, &gcetest.Options{Faults: faults})
	s := spec(t)
	s.Market, s.Args = nstance.Spot, json.RawMessage(`{"termination_action": "STOP"}`)
	_, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	require.NoError(t, cloud.Reclaim(cloud.Machines()[0].Handle, 0))
	faults.Next("zoneOperations.list", testcloud.Fault{Answer: gcetest.Refuse(http.StatusServiceUnavailable, "backendError", "No.")})
	var last error
	for _, err := range p.List(t.Context(), s.Owner) {
		last = err
	}
	require.ErrorIs(t, last, nstance.Unavailable)
}

// TestFailureOfThisCall: a create that fails is not sent again because the operation's clock is a
// little behind that of the answer. An operation of an earlier call is passed over.
func TestFailureOfThisCall(t *testing.T) {
	for name, c := range map[string]struct {
		before   time.Duration
		machines int
	}{"this call's": {5 * time.Second, 0}, "an earlier call's": {time.Minute, 1}} {
		t.Run(name, func(t *testing.T) {
			faults := &testcloud.Faults{}
			cloud, p := newCloud(t, &gcetest.Options{Faults: faults})
			failed := errorsOf("ZONE_RESOURCE_POOL_EXHAUSTED")
			failed["insertTime"] = time.Now().Add(-c.before).Format(time.RFC3339Nano)
			faults.Next("instances.insert", says(done(failed)))
			_, err := p.Create(t.Context(), spec(t))
			require.Equal(t, c.machines == 0, nstance.CodeOf(err) == nstance.Capacity, "%v", err)
			require.Len(t, cloud.Machines(), c.machines)
		})
	}
}

// TestImagesThatDoNotFit: a deprecated image, and one that is not ready, are passed over.
func TestImagesThatDoNotFit(t *testing.T) {
	faults := &testcloud.Faults{}
	_, p := newCloud(t, &gcetest.Options{Faults: faults})
	image := func(name, created string, more map[string]any) map[string]any {
		out := map[string]any{"kind": "compute#image", "name": name, "status": "READY", "creationTimestamp": created, "architecture": "X86_64"}
		maps.Copy(out, more)
		return out
	}
	faults.Next("images.list", says(map[string]any{"kind": "compute#imageList", "items": []any{
		image("debian-12-1", "2026-10-01T00:00:00Z", nil), image("debian-12-2", "2026-10-02T00:00:00Z", map[string]any{"deprecated": map[string]any{"state": "DEPRECATED"}}),
		image("debian-12-3", "2026-10-03T00:00:00Z", map[string]any{"status": "PENDING"}), image("debian-12-4", "2026-10-04T00:00:00Z", map[string]any{"architecture": "ARM64"}),
	}}))
	got, err := p.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "debian-cloud", Name: "debian-12-*", Arch: nstance.AMD64})
	require.NoError(t, err)
	require.Equal(t, "projects/debian-cloud/global/images/debian-12-1", got)
}

// TestAddressWithoutLength: the cloud may write an alias address with or without its length.
func TestAddressWithoutLength(t *testing.T) {
	faults := &testcloud.Faults{}
	_, url := serve(t, &gcetest.Options{Faults: faults})
	p := open(t, url, "server")
	for written, want := range map[string]bool{"10.0.0.200": true, "10.0.0.200/32": true, "10.0.0.200/31": false} {
		faults.Next("instances.get", says(map[string]any{"kind": "compute#instance", "name": "server", "networkInterfaces": []any{map[string]any{
			"subnetwork": "projects/" + project + "/regions/us-central1/subnetworks/default", "aliasIpRanges": []any{map[string]any{"ipCidrRange": written}},
		}}}))
		held, err := p.HoldsAddress(t.Context(), "10.0.0.200")
		require.NoError(t, err)
		require.Equal(t, want, held, written)
	}
}

// TestTokenNotAnswered: a service of tokens that has no time says nothing of the credentials.
func TestTokenNotAnswered(t *testing.T) {
	for status, want := range map[int]nstance.Code{
		http.StatusTooManyRequests: nstance.Unavailable, http.StatusRequestTimeout: nstance.Unavailable, http.StatusUnauthorized: nstance.Denied,
	} {
		tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		defer tokens.Close()
		cloud, url := serve(t, &gcetest.Options{Account: "server@test-project.iam.gserviceaccount.com"})
		file := filepath.Join(t.TempDir(), "key.json")
		writeFile(t, file, cloud.KeyFile(tokens.URL))
		p, err := gcp.New(t.Context(), zone, &gcp.Options{Project: project, Endpoint: url, CredentialsFile: file})
		require.NoError(t, err)
		_, err = p.Get(t.Context(), spec(t).ID)
		require.Equal(t, want, nstance.CodeOf(err), "%v", err)
	}
}

// TestRedirected: a redirection counts as no answer, and is not followed with the credentials.
func TestRedirected(t *testing.T) {
	var asked atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(elsewhere.Close)
	gateway := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	t.Cleanup(gateway.Close)
	cloud, url := serve(t, &gcetest.Options{Account: "server@test-project.iam.gserviceaccount.com"})
	file := filepath.Join(t.TempDir(), "key.json")
	writeFile(t, file, cloud.KeyFile(url))
	p, err := gcp.New(t.Context(), zone, &gcp.Options{Project: project, Endpoint: gateway.URL, CredentialsFile: file})
	require.NoError(t, err)
	_, err = p.Create(t.Context(), spec(t))
	require.ErrorIs(t, err, nstance.Ambiguous)
	_, err = p.Get(t.Context(), spec(t).ID)
	require.ErrorIs(t, err, nstance.Unavailable)
	require.Zero(t, asked.Load())
}
