package program

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	certificateLife = 365 * 24 * time.Hour
	checkInterval   = 10 * time.Second // between two looks at Secret and configuration
	checkLimit      = 30 * time.Second // for one look
	clockSkew       = time.Hour        // between this host and the API server
)

// keyAuthority is the Secret's key with the certificates that the API server trusts:
// the one in use, and the one before it, which other replicas may still use.
const keyAuthority = "ca.crt"

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=nstance-operator,verbs=get;patch
// +kubebuilder:rbac:groups="",namespace=nstance-system,resources=secrets,verbs=create
// +kubebuilder:rbac:groups="",namespace=nstance-system,resources=secrets,resourceNames=nstance-operator-webhook,verbs=get;update

// certificates keeps the webhooks' certificate: one for all replicas, in a Secret,
// signed by itself. The configuration of the webhooks has it as authority. It is safe
// for concurrent use.
type certificates struct {
	kube                                 kubernetes.Interface
	log                                  *slog.Logger
	namespace, secretName, configuration string
	now                                  func() time.Time

	current atomic.Pointer[tls.Certificate]
	problem atomic.Pointer[string] // the last one that was logged
}

func newCertificates(kube kubernetes.Interface, o *options, log *slog.Logger) *certificates {
	return &certificates{
		kube: kube, log: log, namespace: o.ownNamespace, secretName: o.name + "-webhook", configuration: o.webhookConfiguration, now: time.Now,
	}
}

// get is a tls.Config's GetCertificate.
func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := c.current.Load(); pair != nil {
		return pair, nil
	}
	return nil, nstance.Errorf(nstance.Unavailable, "the webhooks have no certificate yet")
}

// keep makes, renews and publishes the certificate until ctx ends.
func (c *certificates) keep(ctx context.Context) {
	for {
		wait := checkInterval
		if err := c.check(ctx); err != nil {
			c.report(err)
			if c.current.Load() == nil || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
				wait = time.Second
			}
		} else if c.problem.Swap(nil) != nil {
			c.log.Info("webhooks have their certificate again")
		}
		if !sleep.For(ctx, wait) {
			return
		}
	}
}

// report logs a problem once.
func (c *certificates) report(err error) {
	text := err.Error()
	if last := c.problem.Swap(&text); last == nil || *last != text {
		c.log.Warn("certificate of the webhooks", "err", err)
	}
}

// check compares the Secret and the configuration with what they should be. A new
// certificate is used from the next check on, when the API server trusts it.
func (c *certificates) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	configuration, err := c.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, c.configuration, metav1.GetOptions{})
	if err != nil {
		return err
	}
	hosts := hostsOf(configuration)
	secret, err := c.kube.CoreV1().Secrets(c.namespace).Get(ctx, c.secretName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		secret, err = c.create(ctx, hosts)
	case err == nil && c.expiring(secret, hosts):
		secret, err = c.renew(ctx, secret, hosts)
	}
	if err != nil {
		return err
	}
	published, err := c.publish(ctx, configuration, secret.Data[keyAuthority])
	if err != nil || published && c.current.Load() != nil {
		return err
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return err
	}
	c.current.Store(&pair)
	return nil
}

// hostsOf returns the names by which the API server calls the webhooks.
func hostsOf(configuration *admissionv1.ValidatingWebhookConfiguration) (hosts []string) {
	for _, w := range configuration.Webhooks {
		if s := w.ClientConfig.Service; s != nil {
			hosts = append(hosts, s.Name+"."+s.Namespace+".svc")
		} else if w.ClientConfig.URL != nil {
			if u, err := url.Parse(*w.ClientConfig.URL); err == nil {
				hosts = append(hosts, u.Hostname())
			}
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// expiring reports whether a Secret's certificate is past two thirds of its life, is
// not for these hosts, or cannot be read.
func (c *certificates) expiring(secret *corev1.Secret, hosts []string) bool {
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil || !bytes.Contains(secret.Data[keyAuthority], secret.Data[corev1.TLSCertKey]) {
		return true
	}
	for _, h := range hosts {
		if pair.Leaf.VerifyHostname(h) != nil {
			return true
		}
	}
	life := pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore)
	return c.now().After(pair.Leaf.NotBefore.Add(life * 2 / 3))
}

func (c *certificates) create(ctx context.Context, hosts []string) (*corev1.Secret, error) {
	cert, key, err := c.makePair(hosts)
	if err != nil {
		return nil, err
	}
	c.log.Info("webhooks get a certificate", "hosts", hosts)
	return c.kube.CoreV1().Secrets(c.namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: c.secretName}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key, keyAuthority: cert},
	}, metav1.CreateOptions{})
}

// renew replaces the certificate. The one before stays trusted until the next renewal.
func (c *certificates) renew(ctx context.Context, secret *corev1.Secret, hosts []string) (*corev1.Secret, error) {
	cert, key, err := c.makePair(hosts)
	if err != nil {
		return nil, err
	}
	c.log.Info("webhooks get another certificate", "hosts", hosts)
	secret = secret.DeepCopy()
	authority := cert
	if block, _ := pem.Decode(secret.Data[corev1.TLSCertKey]); block != nil {
		authority = slices.Concat(cert, pem.EncodeToMemory(block))
	}
	secret.Data = map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key, keyAuthority: authority}
	return c.kube.CoreV1().Secrets(c.namespace).Update(ctx, secret, metav1.UpdateOptions{})
}

// publish has the API server trust an authority, and reports whether it did not yet.
func (c *certificates) publish(ctx context.Context, configuration *admissionv1.ValidatingWebhookConfiguration, authority []byte) (published bool, err error) {
	type clientConfig struct {
		CABundle []byte `json:"caBundle"`
	}
	type hook struct {
		Name         string       `json:"name"`
		ClientConfig clientConfig `json:"clientConfig"`
	}
	var hooks []hook
	for _, w := range configuration.Webhooks {
		if !bytes.Equal(w.ClientConfig.CABundle, authority) {
			hooks = append(hooks, hook{w.Name, clientConfig{authority}})
		}
	}
	if len(hooks) == 0 {
		return false, nil
	}
	patch, err := json.Marshal(map[string]any{"webhooks": hooks})
	if err != nil {
		return false, err
	}
	_, err = c.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Patch(ctx, c.configuration, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return true, err
}

// makePair makes a key, and a certificate of it that it signs itself.
func (c *certificates) makePair(hosts []string) (cert, key []byte, err error) {
	if len(hosts) == 0 {
		return nil, nil, errors.New("the configuration of the webhooks names no webhook")
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "webhooks of " + c.configuration},
		NotBefore: c.now().Add(-clockSkew), NotAfter: c.now().Add(certificateLife),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true,
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}
