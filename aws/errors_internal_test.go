package aws

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/doctest"
	"github.com/nstance-go/nstance/internal/test/freeport"
)

func credentials(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "secret"}, nil
}

// at returns a provider whose calls are answered by h. The configuration permits many
// attempts, which the provider must not make.
func at(t *testing.T, h http.HandlerFunc) *Provider {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	conf := aws.Config{
		Region: "eu-central-1", Credentials: aws.CredentialsProviderFunc(credentials),
		RetryMaxAttempts: 5, RetryMode: aws.RetryModeAdaptive,
	}
	p, err := New(conf, &Options{Endpoint: server.URL, ELBEndpoint: server.URL, STSEndpoint: server.URL, NetworkInterface: "eni-1"})
	require.NoError(t, err)
	return p
}

// refuse answers as EC2 does.
func refuse(w http.ResponseWriter, status int, code, message string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Response><Errors><Error><Code>%s</Code><Message>", code)
	_ = xml.EscapeText(w, []byte(message))
	fmt.Fprint(w, "</Message></Error></Errors><RequestID>ea966190-f9aa-478e-9ede-example</RequestID></Response>")
}

// statuses are those that are not 400 ("Server error codes", EC2 API Reference).
var statuses = map[string]int{
	"InsufficientAddressCapacity": 500, "InsufficientCapacity": 500, "InsufficientHostCapacity": 500, "InsufficientInstanceCapacity": 500,
	"InsufficientReservedInstanceCapacity": 500, "InsufficientVolumeCapacity": 500, "InternalError": 500, "InternalFailure": 500,
	"RequestLimitExceeded": 503, "ServerInternal": 500, "ServiceUnavailable": 503, "Unavailable": 503, "UnfulfillableCapacity": 500,
}

func testSpec() nstance.MachineSpec {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	id, err := nstance.NewInstanceID("tst", now)
	if err != nil {
		panic(err)
	}
	return nstance.MachineSpec{
		ID: id, Owner: nstance.Owner{Installation: "i1", Cluster: "c", Shard: "a", Tenant: "default"}, Group: "web", CreatedAt: now, Epoch: 7,
		Image: "ami-0123456789abcdef0", InstanceType: "m7g.large", Subnet: "subnet-0123456789abcdef0", Token: string(id) + "-0123456789",
	}
}

// TestErrorRows checks every row of the table by a launch and by a read, through
// the real client.
func TestErrorRows(t *testing.T) {
	for _, row := range errorRows {
		t.Run(row.code+row.message, func(t *testing.T) {
			code := strings.TrimSuffix(row.code, "*")
			calls := atomic.Int32{}
			p := at(t, func(w http.ResponseWriter, _ *http.Request) {
				calls.Add(1)
				refuse(w, cmp.Or(statuses[code], 400), code, "something "+row.message+" happened")
			})
			_, err := p.Create(t.Context(), testSpec())
			require.Equal(t, row.means, nstance.CodeOf(err), "%v", err)
			require.EqualValues(t, 1, calls.Load(), "the SDK repeated a launch")
			require.ErrorContains(t, err, "RunInstances: "+code+": something")
			require.ErrorContains(t, err, "ea966190")
			if row.field != "" {
				require.ErrorContains(t, err, row.field+": ")
			}
			read := row.means
			if read == nstance.Ambiguous {
				read = nstance.Unavailable
			}
			_, err = p.Get(t.Context(), testSpec().ID)
			require.Equal(t, read, nstance.CodeOf(err), "%v", err)
			require.EqualValues(t, 2, calls.Load(), "the SDK repeated a read")
		})
	}
}

// TestErrorRowsAreReached fails for a row that an earlier one hides.
func TestErrorRowsAreReached(t *testing.T) {
	for n, row := range errorRows {
		for _, earlier := range errorRows[:n] {
			prefix, open := strings.CutSuffix(earlier.code, "*")
			same := earlier.code == row.code || open && strings.HasPrefix(row.code, prefix)
			require.False(t, same && earlier.message == "", "%s hides %s", earlier.code, row.code)
		}
	}
}

func TestUnknownCodes(t *testing.T) {
	for status, want := range map[int]nstance.Code{400: nstance.Invalid, 403: nstance.Denied, 404: nstance.Invalid, 408: nstance.Ambiguous, 418: nstance.Invalid, 429: nstance.Throttled, 500: nstance.Ambiguous, 599: nstance.Ambiguous} {
		p := at(t, func(w http.ResponseWriter, _ *http.Request) { refuse(w, status, "SomethingNew", "") })
		_, err := p.Create(t.Context(), testSpec())
		require.Equal(t, want, nstance.CodeOf(err), "status %d: %v", status, err)
	}
}

// TestNewState: a machine that is in a state which no table has is listed, and its status is not
// known.
func TestNewState(t *testing.T) {
	s := testSpec()
	p := at(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, "<DescribeInstancesResponse><requestId>1</requestId><reservationSet>")
		if !strings.Contains(string(body), "instance-state-name") {
			fmt.Fprint(w, "<item><instancesSet><item><instanceId>i-1</instanceId><instanceState><code>99</code><name>quarantined</name></instanceState><tagSet>")
			for key, value := range marks(s) {
				fmt.Fprintf(w, "<item><key>%s</key><value>%s</value></item>", key, value)
			}
			fmt.Fprint(w, "</tagSet></item></instancesSet></item>")
		}
		fmt.Fprint(w, "</reservationSet></DescribeInstancesResponse>")
	})
	var found []nstance.Machine
	for m, err := range p.List(t.Context(), s.Owner) {
		require.NoError(t, err)
		found = append(found, m)
	}
	require.Len(t, found, 1)
	require.Equal(t, nstance.StatusUnknown, found[0].Status)
}

// TestNoAnswer checks answers that are not EC2's.
func TestNoAnswer(t *testing.T) {
	handlers := map[string]http.HandlerFunc{
		"a reset connection": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"a proxy's page": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			fmt.Fprint(w, "<html>bad gateway</html>")
		},
		"half an answer": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "<RunInstancesResponse><instancesSet><item>")
		},
	}
	for name, h := range handlers {
		t.Run(name, func(t *testing.T) {
			p := at(t, h)
			_, err := p.Create(t.Context(), testSpec())
			require.Equal(t, nstance.Ambiguous, nstance.CodeOf(err), "%v", err)
			_, err = p.Get(t.Context(), testSpec().ID)
			require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "%v", err)
			require.Equal(t, nstance.Unavailable, nstance.CodeOf(p.Delete(t.Context(), nstance.Machine{ID: testSpec().ID})))
		})
	}
}

// TestTimeout: a launch without an answer in time is Ambiguous, one that was never sent
// is not.
func TestTimeout(t *testing.T) {
	arrived := make(chan struct{})
	p := at(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // until then the server does not see that the client has gone
		close(arrived)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	_, err := p.Create(ctx, testSpec())
	require.Equal(t, nstance.Ambiguous, nstance.CodeOf(err), "%v", err)
	_, err = p.Create(ctx, testSpec())
	require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "%v", err)
}

func TestNothingSent(t *testing.T) {
	server, err := freeport.Address()
	require.NoError(t, err)
	conf := aws.Config{Region: "eu-central-1", Credentials: aws.CredentialsProviderFunc(credentials)}
	p, err := New(conf, &Options{Endpoint: "http://" + server})
	require.NoError(t, err)
	_, err = p.Create(t.Context(), testSpec())
	require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "connection refused: %v", err)

	conf.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{}, fmt.Errorf("no profile of that name")
	})
	p, err = New(conf, &Options{Endpoint: "http://" + server})
	require.NoError(t, err)
	_, err = p.Create(t.Context(), testSpec())
	require.Equal(t, nstance.Denied, nstance.CodeOf(err), "no credentials: %v", err)
	require.ErrorContains(t, err, "no profile of that name")
}

// TestMissingPermission keeps the encoded part of the message out.
func TestMissingPermission(t *testing.T) {
	p := at(t, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, 403, "UnauthorizedOperation", "You are not authorized to perform this operation. Encoded authorization failure message: "+strings.Repeat("x", 2000))
	})
	_, err := p.Create(t.Context(), testSpec())
	require.Equal(t, nstance.Denied, nstance.CodeOf(err))
	require.Less(t, len(err.Error()), 300)
}

const errorsDoc = "../docs/errors.md"

func TestErrorsDocument(t *testing.T) {
	table := &strings.Builder{}
	fmt.Fprintln(table, "| code of AWS | code | remark |\n|---|---|---|")
	for _, row := range errorRows {
		code, why := "`"+row.code+"`", row.why
		if row.message != "" {
			code += " with \"" + row.message + "\""
		}
		means := "`" + string(row.means) + "`"
		if row.means == nstance.Ambiguous {
			means += "; of a read `unavailable`"
		}
		if row.field != "" {
			why = strings.TrimPrefix(why+"; names `"+row.field+"`", "; ")
		}
		fmt.Fprintf(table, "| %s | %s | %s |\n", code, means, why)
	}
	doctest.Section(t, errorsDoc, "aws", table.String())
}
