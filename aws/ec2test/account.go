package ec2test

import (
	"net/http"
	"slices"
)

type callerIdentityInput struct{}

type callerIdentityOutput struct {
	ARN     string `xml:"Arn"`
	UserID  string `xml:"UserId"`
	Account string `xml:"Account"`
}

// An inventory shows what the account has in the region beside machines.
type inventory struct {
	o       *Options
	network *network
}

func (v *inventory) getCallerIdentity(_ call, _ *callerIdentityInput) (*callerIdentityOutput, error) {
	return &callerIdentityOutput{ARN: "arn:aws:iam::" + v.o.Account + ":user/nstance", UserID: "AIDACKCEVSQ6C2EXAMPLE", Account: v.o.Account}, nil
}

// Accounts returns the API of several accounts: the credential that a call is
// signed with decides which account answers it.
func Accounts(all ...*Cloud) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, _ := parseSignature(r.Header.Get("Authorization"))
		i := slices.IndexFunc(all, func(c *Cloud) bool {
			return slices.ContainsFunc(c.o.Credentials, func(k Credential) bool { return k.AccessKeyID == s.keyID })
		})
		all[max(i, 0)].ServeHTTP(w, r)
	})
}
