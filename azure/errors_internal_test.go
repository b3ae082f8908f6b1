package azure

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/internal/test/doctest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

type testToken struct{}

func (testToken) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: "secret", ExpiresOn: time.Now().Add(time.Hour)}, nil
}

const testSubnet = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/v/subnets/a"

// testPool is a backend address pool of the cloud of openTest.
const testPool = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/net/providers/Microsoft.Network/loadBalancers/lb/backendAddressPools/web"

func openTest(t *testing.T) (*armtest.Cloud, *Provider) {
	t.Helper()
	c := armtest.New(&armtest.Options{
		Subnets: map[string]int{testSubnet: 100}, Pools: []string{testPool},
		Images: []armtest.Image{{ID: "a:b:c:d"}, {ID: "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/images/providers/Microsoft.Compute/galleries/shared/images/web-1/versions/1.0.0"}},
	})
	server := httptest.NewTLSServer(c)
	t.Cleanup(func() {
		server.Close()
		require.NoError(t, c.Close())
	})
	p, err := New(Options{
		Subscription: "00000000-0000-0000-0000-000000000001", ResourceGroup: "machines", Location: "westeurope",
		Endpoint: server.URL, Tokens: testToken{}, Transport: server.Client(),
	})
	require.NoError(t, err)
	return c, p
}

func testSpec(t *testing.T) nstance.MachineSpec {
	t.Helper()
	now := time.Now().UTC()
	id, err := nstance.NewInstanceID("tst", now)
	require.NoError(t, err)
	return nstance.MachineSpec{
		ID: id, Owner: nstance.Owner{Installation: "i", Cluster: "c", Shard: "a", Tenant: "default"}, CreatedAt: now,
		Image: "a:b:c:d", InstanceType: "Standard_D2s_v5", Subnet: testSubnet, Token: string(id),
		Args: json.RawMessage(`{"ssh_public_keys": ["ssh-ed25519 AAAA"]}`),
	}
}

// samples are messages that match the rules with texts.
var samples = map[string]string{
	"(?i)exceeding.*quota":      "Operation results in exceeding approved Standard DSv5 Family Cores quota. Current Limit: 0",
	"(?i)marked for deletion":   "The operation cannot be performed: VM x is marked for deletion",
	"(?i)/backendAddressPools/": "Resource /subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/l/backendAddressPools/p referenced by resource was not found",
}

// refusals returns answers that match a rule: each code by itself, and inside another
// one.
func (r rule) refusals() (out []*armtest.Refusal) {
	status := r.status
	if status == 0 {
		status = http.StatusConflict
	}
	message := "no"
	if r.text != nil {
		message = samples[r.text.String()]
	}
	if r.codes == nil {
		return []*armtest.Refusal{{Status: status, Code: "SomethingElse", Message: message}}
	}
	for _, code := range r.codes {
		out = append(out, &armtest.Refusal{Status: status, Code: code, Message: message})
		if r.ours != nstance.NotFound { // only the outer code counts for that
			out = append(out, &armtest.Refusal{Status: status, Code: "ResourceDeploymentFailure", Message: "failed", Details: []armtest.Detail{{Code: code, Message: message}}})
		}
	}
	return out
}

// TestErrorRules checks every row of the table by a create, a read and a delete,
// through the real client.
func TestErrorRules(t *testing.T) {
	for i, r := range rules {
		t.Run(fmt.Sprint(i, " ", r.name()), func(t *testing.T) {
			t.Parallel()
			for _, refusal := range r.refusals() {
				require.Same(t, &rules[i], ruleFor(refusal.Status, causeOf(refusal)), "an earlier rule hides %s", refusal.Code)
				c, p := openTest(t)
				c.Faults.Next("VirtualMachinesClient.Get", testcloud.Fault{Answer: refusal.ServeHTTP})
				_, err := p.Get(t.Context(), testSpec(t).ID)
				require.Equal(t, r.ours, nstance.CodeOf(err), "read: %v", err)

				s := testSpec(t)
				c.Faults.Next("VirtualMachinesClient.BeginCreateOrUpdate", testcloud.Fault{Answer: refusal.ServeHTTP})
				_, err = p.Create(t.Context(), s)
				require.Equal(t, r.create(refusal), nstance.CodeOf(err), "create: %v", err)

				m, err := p.Create(t.Context(), testSpec(t))
				require.NoError(t, err)
				c.Faults.Next("VirtualMachinesClient.BeginDelete", testcloud.Fault{Answer: refusal.ServeHTTP})
				require.Equal(t, r.remove(refusal), nstance.CodeOf(p.Delete(t.Context(), m)), "delete")
			}
		})
	}
}

func causeOf(r *armtest.Refusal) cause {
	out := cause{Code: r.Code, Message: r.Message}
	for _, d := range r.Details {
		out.Details = append(out.Details, cause{Code: d.Code, Message: d.Message})
	}
	return out
}

// create is the result of a create after a refusal: without an answer, or when the
// machine exists, it reads.
func (r rule) create(refusal *armtest.Refusal) nstance.Code {
	switch {
	case refusal.Status == http.StatusPreconditionFailed || refusal.Code == "PropertyChangeNotAllowed":
		return nstance.Ambiguous // the existing machine is not visible
	case r.busy:
		return nstance.Unavailable
	case r.ours == nstance.Unavailable:
		return nstance.Ambiguous
	case r.ours == nstance.NotFound:
		return nstance.Invalid
	}
	return r.ours
}

// remove is the result of a delete: Conflict would mean a foreign machine, and one that
// is just gone is accepted.
func (r rule) remove(*armtest.Refusal) nstance.Code {
	switch r.ours {
	case nstance.Conflict:
		return nstance.Unavailable
	case nstance.NotFound:
		return ""
	}
	return r.ours
}

// TestUnknownErrors: errors in no table.
func TestUnknownErrors(t *testing.T) {
	c, p := openTest(t)
	odd := &armtest.Refusal{Status: http.StatusTeapot, Code: "Teapot", Message: "short and stout"}
	c.Faults.Next("VirtualMachinesClient.Get", testcloud.Fault{Answer: odd.ServeHTTP})
	_, err := p.Get(t.Context(), testSpec(t).ID)
	require.Equal(t, nstance.Invalid, nstance.CodeOf(err))
	require.ErrorContains(t, err, "short and stout")
	lost := testcloud.Fault{Lost: testcloud.LostAnswer}
	c.Faults.Next("VirtualMachinesClient.Get", lost, lost) // net/http repeats a read on a reused connection
	_, err = p.Get(t.Context(), testSpec(t).ID)
	require.Equal(t, nstance.Unavailable, nstance.CodeOf(err))
}

func (r rule) name() string {
	var out []string
	for _, c := range r.codes {
		out = append(out, "`"+c+"`")
	}
	text := strings.Join(out, ", ")
	if r.text != nil {
		text += fmt.Sprintf(" with `%s`", strings.TrimPrefix(r.text.String(), "(?i)"))
	}
	if r.status != 0 {
		text = strings.TrimSpace(fmt.Sprintf("%d %s", r.status, text))
	}
	return text
}

// TestErrorDocument compares the table with docs/errors.md; -update writes it.
func TestErrorDocument(t *testing.T) {
	out := &strings.Builder{}
	fmt.Fprintln(out, "| Azure's status or code | code | of a machine whose create had been accepted | meaning |\n|---|---|---|---|")
	for _, r := range rules {
		loss := "—"
		if r.loss != "" {
			loss = "`" + string(r.loss) + "`"
		}
		fmt.Fprintf(out, "| %s | `%s` | %s | %s |\n", strings.ReplaceAll(r.name(), "|", `\|`), r.ours, loss, r.why)
	}
	fmt.Fprint(out, "\nThe first row that fits decides; a code also counts when it is a cause inside another error. ")
	fmt.Fprintln(out, "Of a create `unavailable` becomes `ambiguous`, and of a delete `conflict` becomes `unavailable`.")
	doctest.Section(t, "../docs/errors.md", "azure", out.String())
}
