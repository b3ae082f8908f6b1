package agent // the parser is not exported

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
)

const goodPayload = `{"kind":"agent","sub":"acc06bgm7733st2576nx5jht4ecjw","cluster_id":"prod","shard":"zone-a","tenant":"default","config_hash":"v1:sha256:00","exp":1,"jti":"x"}`

func jwt(payload string) string {
	return "eyJhbGciOiJFZERTQSJ9." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2lnbmF0dXJl"
}

func TestParseNonce(t *testing.T) {
	t.Parallel()
	t.Run("reads what the agent needs, and ignores the rest", func(t *testing.T) {
		c, err := parseNonce("\n" + jwt(goodPayload) + "\n")
		require.NoError(t, err)
		require.Equal(t, claims{Kind: "agent", Subject: "acc06bgm7733st2576nx5jht4ecjw", Cluster: "prod", Shard: "zone-a", ConfigHash: "v1:sha256:00"}, c)
	})
	for name, token := range map[string]string{
		"empty":              "",
		"not a JWT":          "hello",
		"two parts":          "a.b",
		"encrypted":          "a.b.c.d.e",
		"bad base64":         "a.!!!.c",
		"padded base64":      "a.e30=.c",
		"not JSON":           jwt("hello"),
		"an array":           jwt("[]"),
		"no claims":          jwt("{}"),
		"an operator's":      jwt(strings.Replace(goodPayload, `"agent"`, `"operator"`, 1)),
		"a bad subject":      jwt(strings.Replace(goodPayload, "acc06", "acc0!", 1)),
		"a bad cluster":      jwt(strings.Replace(goodPayload, `"prod"`, `"a.evil"`, 1)),
		"a bad shard":        jwt(strings.Replace(goodPayload, `"zone-a"`, `"../x"`, 1)),
		"a number as a name": jwt(strings.Replace(goodPayload, `"prod"`, `5`, 1)),
		"a long hash":        jwt(strings.Replace(goodPayload, "v1:", strings.Repeat("v", 300), 1)),
		"too long":           strings.Repeat("x", maxNonce+1),
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			_, err := parseNonce(token)
			require.ErrorIs(t, err, nstance.Invalid)
			if len(token) > 8 {
				require.NotContains(t, err.Error(), token)
			}
		})
	}
}

func FuzzParseNonce(f *testing.F) {
	f.Add(jwt(goodPayload))
	f.Add("..")
	f.Add("a.e30.c")
	f.Fuzz(func(t *testing.T, token string) {
		c, err := parseNonce(token)
		if err != nil {
			require.Equal(t, nstance.Invalid, nstance.CodeOf(err))
			return
		}
		require.NoError(t, validate.Name("cluster", c.Cluster))
		require.NoError(t, validate.Shard("shard", c.Shard))
		_, err = json.Marshal(c)
		require.NoError(t, err)
	})
}
