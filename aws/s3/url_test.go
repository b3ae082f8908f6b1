package s3_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/s3"
)

func TestOpen(t *testing.T) {
	for name, u := range map[string]string{
		"region":              "s3://b?region=eu-west-1",
		"all":                 "s3://b/?region=eu-west-1&prefix=a/b/&endpoint=https%3A%2F%2Fminio.example&use_path_style=true",
		"endpoint, no region": "s3://b?endpoint=http://127.0.0.1:9000",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s3.Open(t.Context(), u, nil)
			require.NoError(t, err)
		})
	}
	for name, u := range map[string]string{
		"no region":       "s3://b",
		"other scheme":    "gs://b?region=eu-west-1",
		"no bucket":       "s3://?region=eu-west-1",
		"folder":          "s3://b/folder?region=eu-west-1",
		"user":            "s3://AKIA:topsecret@b?region=eu-west-1",
		"fragment":        "s3://b?region=eu-west-1#topsecret",
		"unknown":         "s3://b?region=eu-west-1&regoin=x",
		"twice":           "s3://b?region=eu-west-1&region=eu-west-2",
		"empty":           "s3://b?region=",
		"path style":      "s3://b?region=eu-west-1&use_path_style=topsecret",
		"endpoint":        "s3://b?region=eu-west-1&endpoint=minio.example:9000",
		"prefix":          "s3://b?region=eu-west-1&prefix=a//b",
		"prefix with dot": "s3://b?region=eu-west-1&prefix=../b",
		"profile":         "s3://b?region=eu-west-1&profile=nobody",
		"not a URL":       "s3://%zz",
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			_, err := s3.Open(t.Context(), u, nil)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, "storage.url")
			require.NotContains(t, err.Error(), "topsecret")
		})
	}
	t.Run("refuses a negative time limit", func(t *testing.T) {
		_, err := s3.Open(t.Context(), "s3://b?region=eu-west-1", &s3.Options{Timeout: -1})
		require.ErrorIs(t, err, nstance.Invalid)
	})
}
