package ec2test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A Credential is what a caller signs with.
type Credential struct {
	AccessKeyID     string
	SecretAccessKey string
	SessionToken    string // empty: a long-term key
}

// What a request may be late by ("RequestExpired", EC2 error codes).
const maxClockSkew = 15 * time.Minute

const signAlgorithm = "AWS4-HMAC-SHA256"

// A signature is the content of an Authorization header of Signature Version 4.
type signature struct {
	keyID, day, region, service string
	headers                     []string
	hex                         string
}

func parseSignature(header string) (s signature, ok bool) {
	rest, ok := strings.CutPrefix(header, signAlgorithm+" ")
	if !ok {
		return s, false
	}
	fields := map[string]string{}
	for field := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		fields[name] = value
	}
	scope := strings.Split(fields["Credential"], "/")
	if len(scope) != 5 || scope[4] != "aws4_request" {
		return s, false
	}
	s = signature{scope[0], scope[1], scope[2], scope[3], strings.Split(fields["SignedHeaders"], ";"), fields["Signature"]}
	return s, s.hex != ""
}

// authenticate checks who signed the request, for which service it was signed,
// and that nothing in it was changed since.
func (g *gateway) authenticate(service string, r *http.Request, body []byte, now time.Time) error {
	s, ok := parseSignature(r.Header.Get("Authorization"))
	if !ok {
		return authFailure(service, "MissingAuthenticationToken", "AWS was not able to validate the provided access credentials")
	}
	i := slices.IndexFunc(g.o.Credentials, func(k Credential) bool { return k.AccessKeyID == s.keyID })
	if i < 0 {
		return authFailure(service, "InvalidClientTokenId", "The security token included in the request is invalid")
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil || at.Format("20060102") != s.day {
		return authFailure(service, "SignatureDoesNotMatch", "The date of the request is missing or not that of its credential scope")
	}
	if now.Sub(at).Abs() > maxClockSkew {
		return refuse("RequestExpired", "Request has expired.")
	}
	if s.region != g.o.Region || s.service != service {
		return authFailure(service, "SignatureDoesNotMatch", "Credential should be scoped to a valid region and correct service")
	}
	key := g.o.Credentials[i]
	if !hmac.Equal([]byte(s.hex), []byte(s.sign(r, body, key.SecretAccessKey))) || r.Header.Get("X-Amz-Security-Token") != key.SessionToken {
		return authFailure(service, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided")
	}
	return nil
}

// authFailure is how EC2 calls every failure of authentication; the others tell
// them apart.
func authFailure(service, code, message string) error {
	if service == compute {
		return refuse("AuthFailure", "AWS was not able to validate the provided access credentials")
	}
	return refuse(code, "%s", message)
}

// sign computes the signature ("Create a signed AWS API request", IAM User
// Guide).
func (s signature) sign(r *http.Request, body []byte, secret string) string {
	var canonical strings.Builder
	line := func(parts ...string) {
		for _, p := range parts {
			canonical.WriteString(p)
		}
		canonical.WriteByte('\n')
	}
	line(r.Method)
	path := r.URL.EscapedPath()
	if path == "" {
		path = "/"
	}
	line(path)
	line(strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20"))
	for _, h := range s.headers {
		value := strings.Join(r.Header.Values(h), ",")
		switch h {
		case "host":
			value = r.Host
		case "content-length":
			value = itoa(int(r.ContentLength))
		}
		line(h, ":", strings.Join(strings.Fields(value), " "))
	}
	line()
	line(strings.Join(s.headers, ";"))
	sum := sha256.Sum256(body)
	canonical.WriteString(hex.EncodeToString(sum[:]))

	hashed := sha256.Sum256([]byte(canonical.String()))
	scope := strings.Join([]string{s.day, s.region, s.service, "aws4_request"}, "/")
	text := strings.Join([]string{signAlgorithm, r.Header.Get("X-Amz-Date"), scope, hex.EncodeToString(hashed[:])}, "\n")
	key := []byte("AWS4" + secret)
	for _, part := range []string{s.day, s.region, s.service, "aws4_request"} {
		key = sum256(key, part)
	}
	return hex.EncodeToString(sum256(key, text))
}

func sum256(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
