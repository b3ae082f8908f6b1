package gcetest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"strings"
	"time"
)

// An account is a service account with its key.
type account struct {
	email  string
	key    *rsa.PrivateKey
	issued string // the token that exchange gives
}

func newAccount(email string) *account {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err) // the system has no randomness
	}
	return &account{email: email, key: key, issued: rand.Text()}
}

// KeyFile returns the key file of the service account Options.Account, as the
// cloud's console gives it out, for a cloud that is served at url. It is nil
// when there is no account.
func (c *Cloud) KeyFile(url string) []byte {
	if c.gateway.account == nil {
		return nil
	}
	der, err := x509.MarshalPKCS8PrivateKey(c.gateway.account.key)
	if err != nil {
		return nil // cannot be: it is an RSA key
	}
	out, _ := json.Marshal(map[string]string{
		"type": "service_account", "project_id": c.o.Project, "private_key_id": "1", "client_email": c.gateway.account.email, "client_id": "1",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": url + "/token",
	})
	return out
}

// authenticate refuses a call whose bearer token is wrong.
func (g *gateway) authenticate(r *http.Request) *apiError {
	if g.o.Token == "" && g.account == nil {
		return nil
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if ok && token != "" && token == g.o.Token {
		return nil
	}
	if ok && g.account != nil && (token == g.account.issued || g.account.verify(token) == nil) {
		return nil
	}
	return refuse(http.StatusUnauthorized, "authError", "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential.")
}

// verify checks a token that the account itself signed (RFC 7519, RS256).
func (a *account) verify(token string) error {
	head, rest, _ := strings.Cut(token, ".")
	body, signature, ok := strings.Cut(rest, ".")
	sig, err := base64.RawURLEncoding.DecodeString(signature)
	if !ok || err != nil {
		return errors.New("not a token")
	}
	digest := sha256.Sum256([]byte(head + "." + body))
	if err := rsa.VerifyPKCS1v15(&a.key.PublicKey, crypto.SHA256, digest[:], sig); err != nil {
		return err
	}
	var claims struct {
		Issuer  string `json:"iss"`
		Expires int64  `json:"exp"`
	}
	raw, err := base64.RawURLEncoding.DecodeString(body)
	if err == nil {
		err = json.Unmarshal(raw, &claims)
	}
	if err == nil && (claims.Issuer != a.email || time.Now().Unix() >= claims.Expires) {
		err = errors.New("another account's token, or an old one")
	}
	return err
}

// exchange gives an access token for a signed assertion (RFC 7523), which is
// what Google's clients do with a key file.
func (a *account) exchange(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
	if r.PostFormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" || a.verify(r.PostFormValue("assertion")) != nil {
		writeJSON(w, http.StatusBadRequest, map[string]string{"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"access_token": a.issued, "token_type": "Bearer", "expires_in": 3600})
}
