// Package awsconf makes configurations of Amazon's SDK.
package awsconf

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/nstance-go/nstance/aws/internal/sdklog"
	"github.com/nstance-go/nstance/internal/proxy"
)

// HTTPClient returns a client that asks a proxy of the environment for what is elsewhere.
func HTTPClient() *awshttp.BuildableClient {
	return awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { t.Proxy = proxy.Elsewhere(t.Proxy) })
}

// Load returns the configuration that the parameters of a URL name, with the meaning that they
// have in gocloud.dev/aws: region, profile, role, dualstack and fips.
func Load(ctx context.Context, params url.Values) (aws.Config, error) {
	opts := []func(*config.LoadOptions) error{
		config.WithHTTPClient(HTTPClient()), config.WithLogger(sdklog.Logger()),
		config.WithRegion(params.Get("region")), config.WithSharedConfigProfile(params.Get("profile")),
	}
	dualStack, err := flag(params, "dualstack")
	if err != nil {
		return aws.Config{}, err
	}
	if dualStack {
		opts = append(opts, config.WithUseDualStackEndpoint(aws.DualStackEndpointStateEnabled))
	}
	fips, err := flag(params, "fips")
	if err != nil {
		return aws.Config{}, err
	}
	if fips {
		opts = append(opts, config.WithUseFIPSEndpoint(aws.FIPSEndpointStateEnabled))
	}
	role := params.Get("role")
	if role != "" && !strings.HasPrefix(role, "arn:") {
		return aws.Config{}, errors.New("parameter role is no ARN")
	}
	conf, err := config.LoadDefaultConfig(ctx, opts...)
	if err != nil || role == "" {
		return conf, err
	}
	if conf.Region == "" {
		return aws.Config{}, errors.New("parameter role needs a region")
	}
	conf.Credentials = aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(sts.NewFromConfig(conf), role))
	return conf, nil
}

func flag(params url.Values, name string) (bool, error) {
	if !params.Has(name) {
		return false, nil
	}
	on, err := strconv.ParseBool(params.Get(name))
	if err != nil {
		return false, fmt.Errorf("parameter %s is neither true nor false", name)
	}
	return on, nil
}
