package gcp_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
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
