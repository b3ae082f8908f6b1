package keyring_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
)

const fixedID = "web06bgm7733st2576nx5jht4ecjw"

// fixedKey returns a nonce key with the same bytes in every run.
func fixedKey(t testing.TB) (ed25519.PrivateKey, *keyring.NonceKey) {
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	return key, load(t, key)
}

func load(t testing.TB, key ed25519.PrivateKey) *keyring.NonceKey {
	data, err := pki.MarshalKey(key)
	require.NoError(t, err)
	k, err := keyring.LoadNonceKey(data)
	require.NoError(t, err)
	return k
}

var here = keyring.Expect{Cluster: cluster, Shard: shard}

func TestNonceClaims(t *testing.T) {
	_, key := fixedKey(t)
	agent := agentClaims(fixedID, epoch)
	agent.OnDemand = true
	operator := operatorClaims(nstance.RoleOperator, "0123456789abcdef", epoch)
	admin := operatorClaims(nstance.RoleAdmin, "0123456789abcdef", epoch)
	admin.Shard = shard
	for _, want := range []keyring.Claims{agent, operator, admin} {
		t.Run(string(want.Kind), func(t *testing.T) {
			token, err := key.Mint(want)
			require.NoError(t, err)
			got, err := key.Verify(token, epoch, keyring.Expect{Cluster: cluster, Shard: shard, Kind: want.Kind})
			require.NoError(t, err)
			if want.JTI == "" {
				want.JTI = want.Subject
			}
			require.Equal(t, want, got)
		})
	}
}

// A nonce is part of user data, and a repeated create must be the same, byte
// for byte, also after an upgrade: these bytes must never change.
func TestMintIsDeterministic(t *testing.T) {
	_, key := fixedKey(t)
	token, err := key.Mint(agentClaims(fixedID, epoch))
	require.NoError(t, err)
	for range 50 {
		again, err := key.Mint(agentClaims(fixedID, epoch.Add(300*time.Millisecond).Local()))
		require.NoError(t, err)
		require.Equal(t, token, again)
	}
	parts := strings.Split(token, ".")
	require.Len(t, parts, 3)
	decode := func(s string) string {
		b, err := base64.RawURLEncoding.DecodeString(s)
		require.NoError(t, err)
		return string(b)
	}
	require.Equal(t, `{"alg":"EdDSA","kid":"`+key.ID()+`","typ":"JWT"}`, decode(parts[0]))
	require.Equal(t, `{"aud":"nstance-registration/prod","cluster_id":"prod","config_hash":"v1:sha256:00","exp":1772367600,`+
		`"group":"web","iat":1772366400,"iss":"nstance/prod","jti":"`+fixedID+`","kind":"agent","nbf":1772366400,`+
		`"shard":"eu-1a","sub":"`+fixedID+`","tenant":"default"}`, decode(parts[1]))
	require.Less(t, len(token), 1<<10)
}

func TestMintRefuses(t *testing.T) {
	_, key := fixedKey(t)
	operator := func(c *keyring.Claims) { *c = operatorClaims(nstance.RoleOperator, "0123456789abcdef", epoch) }
	for name, tc := range map[string]struct {
		change []func(*keyring.Claims)
		field  string
	}{
		"no kind":               {[]func(*keyring.Claims){func(c *keyring.Claims) { c.Kind, c.JTI = "", "0123456789abcdef" }}, "kind"},
		"kind server":           {[]func(*keyring.Claims){operator, func(c *keyring.Claims) { c.Kind = nstance.RoleServer }}, "kind"},
		"no instance ID":        {[]func(*keyring.Claims){func(c *keyring.Claims) { c.Subject, c.JTI = "web-1", "0123456789abcdef" }}, "instance_id"},
		"no cluster":            {[]func(*keyring.Claims){func(c *keyring.Claims) { c.Cluster = "" }}, "cluster_id"},
		"no tenant":             {[]func(*keyring.Claims){func(c *keyring.Claims) { c.Tenant = "" }}, "tenant"},
		"no shard":              {[]func(*keyring.Claims){func(c *keyring.Claims) { c.Shard = "" }}, "shard"},
		"a bad shard":           {[]func(*keyring.Claims){operator, func(c *keyring.Claims) { c.Shard = "a/b" }}, "shard"},
		"no group":              {[]func(*keyring.Claims){func(c *keyring.Claims) { c.Group = "" }}, "group"},
		"no expiry":             {[]func(*keyring.Claims){func(c *keyring.Claims) { c.Expiry = time.Time{} }}, "exp"},
		"no start":              {[]func(*keyring.Claims){func(c *keyring.Claims) { c.NotBefore = time.Time{} }}, "exp"},
		"expiry before start":   {[]func(*keyring.Claims){func(c *keyring.Claims) { c.Expiry = c.NotBefore }}, "exp"},
		"an operator's own sub": {[]func(*keyring.Claims){operator, func(c *keyring.Claims) { c.Subject = "me" }}, "sub"},
		"an operator's no jti":  {[]func(*keyring.Claims){operator, func(c *keyring.Claims) { c.JTI = "" }}, "jti"},
		"a cluster as its jti": {[]func(*keyring.Claims){operator, func(c *keyring.Claims) {
			c.Cluster, c.Subject, c.JTI = "a-cluster-with-a-long-name", "a-cluster-with-a-long-name", ""
		}}, "jti"},
		"a short jti":          {[]func(*keyring.Claims){operator, func(c *keyring.Claims) { c.JTI = "1" }}, "jti"},
		"a long jti":           {[]func(*keyring.Claims){operator, func(c *keyring.Claims) { c.JTI = strings.Repeat("a", 65) }}, "jti"},
		"a jti that is a path": {[]func(*keyring.Claims){operator, func(c *keyring.Claims) { c.JTI = "../../secret/key" }}, "jti"},
		"a jti with a path":    {[]func(*keyring.Claims){operator, func(c *keyring.Claims) { c.JTI = "aaaaaaaa/aaaaaaaa" }}, "jti"},
	} {
		t.Run(name, func(t *testing.T) {
			c := agentClaims(fixedID, epoch)
			for _, change := range tc.change {
				change(&c)
			}
			_, err := key.Mint(c)
			require.ErrorIs(t, err, nstance.Invalid)
			e, ok := errors.AsType[*nstance.Error](err)
			require.True(t, ok)
			require.Equal(t, tc.field, e.Field)
		})
	}
}

// sign creates a token with any claims, key and algorithm.
func sign(t testing.TB, alg jose.SignatureAlgorithm, key any, kid string, claims any) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, nil)
	require.NoError(t, err)
	payload, err := json.Marshal(claims)
	require.NoError(t, err)
	jws, err := signer.Sign(payload)
	require.NoError(t, err)
	token, err := jws.CompactSerialize()
	require.NoError(t, err)
	return token
}

func TestVerifyRefusesNonces(t *testing.T) {
	raw, key := fixedKey(t)
	good := map[string]any{
		"iss": "nstance/prod", "aud": "nstance-registration/prod", "sub": fixedID, "jti": fixedID,
		"nbf": epoch.Unix(), "iat": epoch.Unix(), "exp": epoch.Add(time.Hour).Unix(),
		"kind": "agent", "cluster_id": "prod", "tenant": "default", "shard": "eu-1a", "group": "web",
	}
	with := func(name string, value any) string {
		c := maps.Clone(good)
		if c[name] = value; value == nil {
			delete(c, name)
		}
		return sign(t, jose.EdDSA, raw, key.ID(), c)
	}
	valid := with("", "")
	parts := strings.Split(valid, ".")
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","kid":"`+key.ID()+`"}`)) + "." + parts[1] + "."
	foreigners := maps.Clone(good)
	foreigners["cluster_id"] = "stage"

	for name, tc := range map[string]struct {
		token string
		at    time.Time
		want  keyring.Expect
		code  nstance.Code
		says  string
	}{
		"empty":                       {token: "", code: nstance.Invalid, says: "not a signed JSON Web Token"},
		"text":                        {token: "hello", code: nstance.Invalid, says: "not a signed JSON Web Token"},
		"JSON serialization":          {token: `{"payload":"e30","signatures":[]}`, code: nstance.Invalid, says: "not a signed JSON Web Token"},
		"a missing part":              {token: parts[0] + "." + parts[1], code: nstance.Invalid, says: "not a signed JSON Web Token"},
		"too long":                    {token: strings.Repeat("a", 4097), code: nstance.Invalid, says: "4097 bytes"},
		"claims that are no object":   {token: sign(t, jose.EdDSA, raw, key.ID(), []int{1}), code: nstance.Invalid, says: "cannot be read"},
		"claims of the wrong type":    {token: with("exp", "tomorrow"), code: nstance.Invalid, says: "cannot be read"},
		"algorithm none":              {token: none, code: nstance.Denied, says: "not signed with EdDSA"},
		"algorithm ES256":             {token: sign(t, jose.ES256, ec, key.ID(), good), code: nstance.Denied, says: "not signed with EdDSA"},
		"HS256 with the public key":   {token: sign(t, jose.HS256, []byte(raw.Public().(ed25519.PublicKey)), key.ID(), good), code: nstance.Denied, says: "not signed with EdDSA"},
		"an altered payload":          {token: parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"kind":"admin"}`)) + "." + parts[2], code: nstance.Denied, says: "forged"},
		"another key, our key ID":     {token: sign(t, jose.EdDSA, pki.NewKey(), key.ID(), good), code: nstance.Denied, says: "forged"},
		"another key":                 {token: sign(t, jose.EdDSA, pki.NewKey(), "0011", good), code: nstance.Denied, says: `unknown key "0011"`},
		"no key ID":                   {token: sign(t, jose.EdDSA, raw, "", good), code: nstance.Denied, says: "unknown key"},
		"another cluster and key":     {token: sign(t, jose.EdDSA, pki.NewKey(), "0011", foreigners), code: nstance.Denied, says: `for cluster "stage", this is cluster "prod"`},
		"another key, no cluster":     {token: sign(t, jose.EdDSA, pki.NewKey(), "0011", map[string]any{"kind": "agent"}), code: nstance.Denied, says: `unknown key "0011"`},
		"another key, damaged claims": {token: sign(t, jose.EdDSA, pki.NewKey(), "0011", map[string]any{"kind": 5, "cluster_id": "stage"}), code: nstance.Denied, says: `unknown key "0011"`},
		"another cluster":             {token: with("cluster_id", "stage"), code: nstance.Denied, says: `for cluster "stage"`},
		"another issuer":              {token: with("iss", "nstance/stage"), code: nstance.Denied, says: "issuer"},
		"another audience":            {token: with("aud", "nstance/prod"), code: nstance.Denied, says: "audience"},
		"another shard":               {token: with("shard", "eu-1b"), code: nstance.Denied, says: `for shard "eu-1b", this is shard "eu-1a"`},
		"an unknown kind":             {token: with("kind", "root"), code: nstance.Denied, says: "kind"},
		"kind server":                 {token: with("kind", "server"), code: nstance.Denied, says: "kind"},
		"another kind than wanted":    {token: valid, want: keyring.Expect{Cluster: cluster, Shard: shard, Kind: nstance.RoleAdmin}, code: nstance.Denied, says: "kind agent, this needs kind admin"},
		"a subject that is no ID":     {token: with("sub", "web-1"), code: nstance.Denied, says: "instance_id"},
		"a bad tenant":                {token: with("tenant", "../x"), code: nstance.Denied, says: "tenant"},
		"a jti that is a path":        {token: with("jti", "../../../secret/x"), code: nstance.Denied, says: "jti"},
		"an expiry before its start":  {token: with("exp", epoch.Unix()-1), code: nstance.Denied, says: "exp"},
		"expired":                     {token: valid, at: epoch.Add(time.Hour), code: nstance.Denied, says: "expired at 2026-03-01T13:00:00Z"},
		"not yet valid":               {token: valid, at: epoch.Add(-61 * time.Second), code: nstance.Denied, says: "not valid before 2026-03-01T12:00:00Z"},
		"without iss":                 {token: with("iss", nil), code: nstance.Denied, says: "lacks the claim iss"},
		"without aud":                 {token: with("aud", nil), code: nstance.Denied, says: "lacks the claim aud"},
		"without sub":                 {token: with("sub", nil), code: nstance.Denied, says: "lacks the claim sub"},
		"without jti":                 {token: with("jti", nil), code: nstance.Denied, says: "lacks the claim jti"},
		"without nbf":                 {token: with("nbf", nil), code: nstance.Denied, says: "lacks the claim nbf"},
		"without exp":                 {token: with("exp", nil), code: nstance.Denied, says: "lacks the claim exp"},
		"without iat":                 {token: with("iat", nil), code: nstance.Denied, says: "lacks the claim iat"},
		"without cluster":             {token: with("cluster_id", nil), code: nstance.Denied, says: "for cluster"},
		"without tenant":              {token: with("tenant", nil), code: nstance.Denied, says: "tenant"},
		"without group":               {token: with("group", nil), code: nstance.Denied, says: "group"},
		"without shard":               {token: with("shard", nil), code: nstance.Denied, says: "shard"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.at.IsZero() {
				tc.at = epoch
			}
			if tc.want == (keyring.Expect{}) {
				tc.want = here
			}
			_, err := key.Verify(tc.token, tc.at, tc.want)
			require.ErrorIs(t, err, tc.code)
			require.ErrorContains(t, err, tc.says)
			e, ok := errors.AsType[*nstance.Error](err)
			require.True(t, ok)
			require.NotEmpty(t, e.Remedy, "every refusal has a remedy")
			require.Equal(t, "nonce", e.Field)
		})
	}
	t.Run("an expired one by its kind", func(t *testing.T) {
		for kind, remedy := range map[nstance.Role]string{nstance.RoleAgent: "raise registration_timeout", nstance.RoleOperator: "nstance-admin cluster nonce"} {
			claims := agentClaims(fixedID, epoch)
			if kind != nstance.RoleAgent {
				claims = operatorClaims(kind, "0123456789abcdef", epoch)
			}
			token, err := key.Mint(claims)
			require.NoError(t, err)
			_, err = key.Verify(token, claims.Expiry, here)
			e, ok := errors.AsType[*nstance.Error](err)
			require.True(t, ok)
			require.Contains(t, e.Remedy, remedy)
		}
	})
	t.Run("but no valid one", func(t *testing.T) {
		for _, at := range []time.Time{epoch.Add(-time.Minute), epoch, epoch.Add(time.Hour - time.Second)} {
			_, err := key.Verify(valid, at, here)
			require.NoError(t, err)
		}
	})
}

func TestNonceKeysSurviveRotation(t *testing.T) {
	old, fresh := keyring.NewNonceKey(), keyring.NewNonceKey()
	before, err := keyring.NewNonceKeys(old)
	require.NoError(t, err)
	after, err := keyring.NewNonceKeys(fresh, old)
	require.NoError(t, err)
	claims := agentClaims(fixedID, epoch)
	token, err := before.Mint("", claims)
	require.NoError(t, err)

	t.Run("old nonces verify", func(t *testing.T) {
		_, err := after.Verify(token, epoch, here)
		require.NoError(t, err)
	})
	t.Run("minting with the recorded key gives the same bytes", func(t *testing.T) {
		again, err := after.Mint(old.ID(), claims)
		require.NoError(t, err)
		require.Equal(t, token, again)
	})
	t.Run("the newest key mints by default", func(t *testing.T) {
		require.Equal(t, fresh.ID(), after.KeyID())
		next, err := after.Mint("", claims)
		require.NoError(t, err)
		require.NotEqual(t, token, next)
		_, err = before.Verify(next, epoch, here)
		require.ErrorIs(t, err, nstance.Denied)
	})
	t.Run("a retired key does not mint", func(t *testing.T) {
		_, err := before.Mint(fresh.ID(), claims)
		require.ErrorIs(t, err, nstance.NotFound)
	})
	t.Run("nil and doubled keys are refused", func(t *testing.T) {
		_, err := keyring.NewNonceKeys(nil)
		require.ErrorIs(t, err, nstance.Invalid)
		_, err = keyring.NewNonceKeys(old, old)
		require.ErrorIs(t, err, nstance.Invalid)
	})
}

func TestLoadNonceKey(t *testing.T) {
	key := keyring.NewNonceKey()
	data, err := key.PEM()
	require.NoError(t, err)
	again, err := keyring.LoadNonceKey(data)
	require.NoError(t, err)
	require.Equal(t, key.ID(), again.ID())
	_, err = keyring.LoadNonceKey([]byte("x"))
	require.ErrorIs(t, err, nstance.Invalid)
}

func TestParseCSR(t *testing.T) {
	key := pki.NewKey()
	got, err := keyring.ParseCSR(csrOf(t, key))
	require.NoError(t, err)
	require.True(t, got.Equal(key.Public()))

	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	ecCSR, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, ec)
	require.NoError(t, err)
	forged := csrOf(t, key)
	forged[len(forged)-1] ^= 1
	for name, tc := range map[string]struct {
		der  []byte
		says string
	}{
		"nothing":           {nil, "0 bytes"},
		"too much":          {make([]byte, 4097), "4097 bytes"},
		"text":              {[]byte("csr"), "cannot be parsed"},
		"PEM":               {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csrOf(t, key)}), "cannot be parsed"},
		"trailing bytes":    {append(csrOf(t, key), 0), "cannot be parsed"},
		"an ECDSA key":      {ecCSR, "ECDSA"},
		"a wrong signature": {forged, "possession"},
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			_, err := keyring.ParseCSR(tc.der)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, tc.says)
		})
	}
}

func FuzzVerify(f *testing.F) {
	_, key := fixedKey(f)
	for _, c := range []keyring.Claims{
		agentClaims(fixedID, epoch), operatorClaims(nstance.RoleAdmin, "0123456789abcdef", epoch),
	} {
		token, err := key.Mint(c)
		require.NoError(f, err)
		f.Add(token)
	}
	f.Add("a.b.c")
	f.Add(`{"payload":"","protected":"","signature":""}`)
	f.Fuzz(func(t *testing.T, token string) {
		got, err := key.Verify(token, epoch, here)
		if err != nil {
			require.Contains(t, []nstance.Code{nstance.Invalid, nstance.Denied}, nstance.CodeOf(err))
			return
		}
		// Only what was minted is genuine, however it is spelled.
		minted, err := key.Mint(got)
		require.NoError(t, err)
		require.Equal(t, strings.Split(minted, ".")[1], strings.Split(token, ".")[1])
	})
}

func FuzzParseCSR(f *testing.F) {
	f.Add(csrOf(f, pki.NewKey()))
	f.Add([]byte{0x30, 0x80})
	f.Fuzz(func(t *testing.T, der []byte) {
		key, err := keyring.ParseCSR(der)
		if err != nil {
			require.ErrorIs(t, err, nstance.Invalid)
			return
		}
		require.Len(t, key, ed25519.PublicKeySize)
	})
}

func TestOperatorNoncesExpire(t *testing.T) {
	_, key := fixedKey(t)
	claims := operatorClaims(nstance.RoleAdmin, "0123456789abcdef", epoch)
	claims.Expiry = claims.NotBefore.Add(keyring.MaxNonceLife)
	_, err := key.Mint(claims)
	require.NoError(t, err)
	claims.Expiry = claims.Expiry.Add(time.Second)
	_, err = key.Mint(claims)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "exp")

	agent := agentClaims(fixedID, epoch)
	agent.Expiry = claims.Expiry
	_, err = key.Mint(agent)
	require.NoError(t, err, "an agent's nonce lasts as long as its group's registration_timeout")
}

func BenchmarkVerifyNonce(b *testing.B) {
	_, key := fixedKey(b)
	token, err := key.Mint(agentClaims(fixedID, epoch))
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := key.Verify(token, epoch, here); err != nil {
			b.Fatal(err)
		}
	}
}
