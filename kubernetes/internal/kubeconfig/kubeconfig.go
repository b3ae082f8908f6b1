// Package kubeconfig reads kubeconfigs that others wrote, as data: an address, its
// authority and inline credentials. Whoever may write a Secret can so have a program
// connect to a server of theirs with credentials of theirs, and no more: nothing is read
// from the program's files, no program is run, and no other server is sent to.
package kubeconfig

import (
	"fmt"
	"net/http"
	"net/url"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nstance-go/nstance"
)

// Parse returns how the cluster of the current context is reached. What it reads is the
// cluster's server, tls-server-name and certificate-authority-data, and the user's
// token, or client-certificate-data and client-key-data. It fails with Invalid, naming
// the field, for any other setting of the two that would have an effect, and for a
// server that is not reached by https. The configuration follows no redirects.
func Parse(data []byte) (*rest.Config, error) {
	file, err := clientcmd.Load(data)
	if err != nil {
		return nil, nstance.FieldError("kubeconfig", "store a kubeconfig in the key value of the Secret", "%v", err)
	}
	context, ok := file.Contexts[file.CurrentContext]
	if !ok {
		return nil, nstance.FieldError("kubeconfig.current-context", "name a context of the file", "there is no context %q", file.CurrentContext)
	}
	cluster, user := file.Clusters[context.Cluster], file.AuthInfos[context.AuthInfo]
	if cluster == nil {
		return nil, nstance.FieldError("kubeconfig.contexts.cluster", "name a cluster of the file", "there is no cluster %q", context.Cluster)
	}
	if user == nil {
		return nil, nstance.FieldError("kubeconfig.contexts.user", "name a user of the file", "there is no user %q", context.AuthInfo)
	}
	if err := refused(cluster, user); err != nil {
		return nil, err
	}
	cfg := &rest.Config{
		Host: cluster.Server, BearerToken: user.Token,
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: cluster.TLSServerName, CAData: cluster.CertificateAuthorityData,
			CertData: user.ClientCertificateData, KeyData: user.ClientKeyData,
		},
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return noRedirects{next} })
	if _, err := rest.TLSConfigFor(cfg); err != nil {
		return nil, nstance.FieldError("kubeconfig", "correct certificate and key in the key value of the Secret", "%v", err)
	}
	return cfg, nil
}

// refused fails for the first setting that is no data.
func refused(c *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) error {
	if server, err := url.Parse(c.Server); err != nil || server.Scheme != "https" || server.Host == "" || server.User != nil {
		return nstance.FieldError("kubeconfig.clusters.cluster.server", "give https://HOST:PORT", "is no address of a server that is reached by https")
	}
	const (
		file    = "no file is read that a Secret names"
		other   = "give a token, or a certificate and its key"
		nobody  = "nobody is impersonated"
		ofUser  = "give credentials of that user"
		cluster = "clusters.cluster."
		user    = "users.user."
	)
	for _, s := range []struct {
		set                    bool
		field, problem, remedy string
	}{
		{c.CertificateAuthority != "", cluster + "certificate-authority", file, "give the content in certificate-authority-data"},
		{c.InsecureSkipTLSVerify, cluster + "insecure-skip-tls-verify", "a server that is not verified gets no credentials", "give the authority in certificate-authority-data"},
		{c.ProxyURL != "", cluster + "proxy-url", "no proxy is used that a Secret names", "remove it, and set HTTPS_PROXY of the operator if it needs one"},
		{u.Exec != nil, user + "exec", "no program is run that a Secret names", other},
		{u.AuthProvider != nil, user + "auth-provider", "no provider is asked that a Secret names", other},
		{u.TokenFile != "", user + "tokenFile", file, "give the content in token"},
		{u.ClientCertificate != "", user + "client-certificate", file, "give the content in client-certificate-data"},
		{u.ClientKey != "", user + "client-key", file, "give the content in client-key-data"},
		{u.Username != "" || u.Password != "", user + "username", "passwords are not sent", other},
		{u.Impersonate != "", user + "as", nobody, ofUser},
		{u.ImpersonateUID != "", user + "as-uid", nobody, ofUser},
		{len(u.ImpersonateGroups) > 0, user + "as-groups", nobody, ofUser},
		{len(u.ImpersonateUserExtra) > 0, user + "as-user-extra", nobody, ofUser},
	} {
		if s.set {
			return nstance.FieldError("kubeconfig."+s.field, s.remedy, "%s", s.problem)
		}
	}
	return nil
}

// noRedirects fails requests that a server redirects: Kubernetes' API does not, and the
// address to which it is redirected is not the Secret's.
type noRedirects struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (n noRedirects) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := n.RoundTripper.RoundTrip(r)
	if err == nil && resp.StatusCode/100 == 3 && resp.Header.Get("Location") != "" {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("the server of the kubeconfig redirects (%s): give the address of Kubernetes' API", resp.Status)
	}
	return resp, err
}

// WrappedRoundTripper has client-go find the transport below.
func (n noRedirects) WrappedRoundTripper() http.RoundTripper { return n.RoundTripper }
