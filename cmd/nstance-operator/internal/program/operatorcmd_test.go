package program_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/cmd/nstance-operator/internal/program"
	"github.com/nstance-go/nstance/internal/version"
)

// call runs the command line in a context that has ended.
func call(args ...string) (code int, stdout, stderr string) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	code = program.Main(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestCommandLine(t *testing.T) {
	t.Run("help names every flag", func(t *testing.T) {
		for _, ask := range []string{"--help", "-h"} {
			code, out, _ := call(ask)
			require.Zero(t, code)
			for _, flag := range []string{
				"namespace", "watch-filter", "concurrency", "kubeconfig", "kube-api-qps", "name", "own-namespace", "leader-elect", "lease-duration", "metrics-bind-address",
				"health-addr", "webhook-port", "webhook-cert-dir", "webhook-configuration", "log-level", "log-format", "version",
			} {
				require.Contains(t, out, "--"+flag)
			}
			require.Contains(t, out, "Exit codes")
		}
	})
	t.Run("version is one line", func(t *testing.T) {
		code, out, _ := call("--version")
		require.Zero(t, code)
		require.Regexp(t, `^nstance-operator `+version.Software+` go\S+.*\n$`, out)
	})
	for name, tt := range map[string]struct {
		args []string
		want []string
	}{
		"unknown flag":             {[]string{"--leader"}, []string{"unknown flag: --leader"}},
		"argument":                 {[]string{"start"}, []string{`unexpected argument "start"`}},
		"own namespace":            {nil, []string{"--own-namespace", "name the namespace"}},
		"own namespace, webhooks":  {[]string{"--leader-elect=false"}, []string{"--own-namespace"}},
		"namespace":                {[]string{"--own-namespace=x", "--namespace=a,B"}, []string{"--namespace", `"B"`}},
		"name":                     {[]string{"--own-namespace=x", "--name=a.b"}, []string{"--name", "hyphens"}},
		"concurrency":              {[]string{"--own-namespace=x", "--concurrency=0"}, []string{"--concurrency", "use 1 or more"}},
		"rate of requests":         {[]string{"--own-namespace=x", "--kube-api-qps=0"}, []string{"--kube-api-qps", "use 1 or more"}},
		"lease too short":          {[]string{"--own-namespace=x", "--lease-duration=1s"}, []string{"--lease-duration", "use 2s or more"}},
		"port":                     {[]string{"--own-namespace=x", "--webhook-port=65536"}, []string{"--webhook-port", "65536"}},
		"certificate, no webhooks": {[]string{"--own-namespace=x", "--webhook-port=0", "--webhook-cert-dir=/x"}, []string{"--webhook-cert-dir", "leave it out"}},
		"metrics address":          {[]string{"--own-namespace=x", "--metrics-bind-address=8443"}, []string{"--metrics-bind-address", ":port"}},
		"health address":           {[]string{"--own-namespace=x", "--health-addr=here"}, []string{"--health-addr", ":port"}},
		"level":                    {[]string{"--own-namespace=x", "--log-level=loud"}, []string{"--log-level", "debug"}},
		"format":                   {[]string{"--own-namespace=x", "--log-format=xml"}, []string{"--log-format", "json"}},
		"kubeconfig":               {[]string{"--own-namespace=x", "--kubeconfig=/no/such/file"}, []string{"--kubeconfig", "/no/such/file"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, errs := call(tt.args...)
			require.Equal(t, 2, code)
			for _, want := range tt.want {
				require.Contains(t, errs, want)
			}
		})
	}
}
