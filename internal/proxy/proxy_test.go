package proxy_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/proxy"
)

// TestElsewhere: what belongs to the machine that asks is not asked through a proxy, which would
// answer for its own machine.
func TestElsewhere(t *testing.T) {
	choose := proxy.Elsewhere(func(*http.Request) (*url.URL, error) { return url.Parse("http://proxy") })
	for address, direct := range map[string]bool{
		"http://169.254.169.254": true, "http://[fd00:ec2::254]:80": true, "http://169.254.170.2/v2/credentials": true, "http://[fd00:ec2::23]": true,
		"http://127.0.0.1": false, "http://[fd00:ec3::1]": false, "https://ec2.eu-west-1.amazonaws.com": false, "https://169.254.169.254.example": false,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		require.NoError(t, err)
		by, err := choose(r)
		require.NoError(t, err)
		require.Equal(t, direct, by == nil, address)
	}
}
