package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/spot"
)

const (
	defaultDir              = "/opt/nstance-agent"
	defaultReportInterval   = time.Minute
	defaultSpotPollInterval = 2 * time.Second
)

// minInterval keeps the agent from loading the machine.
const minInterval = 50 * time.Millisecond

// Options configure an Agent. Zero fields mean the default given here; a field
// without one is required.
type Options struct {
	InstanceID nstance.InstanceID   // this machine's identity
	Kind       nstance.InstanceKind // the template's kind; empty: the ID's own

	RegistrationAddrs []string // host:port of the registration listeners; tried in turn
	AgentAddrs        []string // host:port of the agent listeners; tried in turn

	// UserDataDir is where user data puts nonce.jwt and ca.crt, which are only read. Of a
	// file that is not there, that of IdentityDir is used. Default: IdentityDir. A folder
	// that the agent's user cannot write keeps root, who runs user data, out of folders in
	// which that user may have put a link.
	UserDataDir string

	IdentityDir  string      // default /opt/nstance-agent/identity: certificate and state
	KeysDir      string      // default /opt/nstance-agent/keys; private keys of certificates among the files
	RecvDir      string      // default /opt/nstance-agent/recv; files sent by the server
	IdentityMode fs.FileMode // of files in IdentityDir, default 0600; the private key always has 0600
	KeysMode     fs.FileMode // default 0640
	RecvMode     fs.FileMode // default 0640

	ReportInterval   time.Duration // default 1m; the server's setting overrides it
	SpotPollInterval time.Duration // default 2s
	Provider         string        // one of Providers; empty: found by probing
	MetadataURL      string        // base URL of the metadata service; empty: the provider's own
	Probes           []health.Probe

	// AzureEventsVersion is the api-version of Azure's scheduled events; empty:
	// 2020-07-01, which has no rebalance recommendations.
	AzureEventsVersion string

	HealthAddr string   // where GET /healthz is served; without a host: loopback; empty: nowhere
	DrainHook  []string // command that empties the machine, run without a shell; empty: none

	// Detector replaces the one found for Provider. With the method Unreadable of spot.AWS
	// it can say why it cannot read its source: reports and Status have that.
	Detector nstance.SpotDetector
	// Drain replaces DrainHook. It returns promptly when ctx ends: at the drain's
	// deadline (it may have been tightened since) or when the drain is withdrawn.
	Drain func(ctx context.Context, d nstance.Drain) (nstance.Outcome, string)
	// Dial replaces the connection to a server's address, for tests and proxies.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// Now is the machine's clock, for times in notices; nil: time.Now. Times are
	// sent as durations.
	Now func() time.Time

	NotifySocket string        // systemd's notification socket; empty: none
	Watchdog     time.Duration // systemd's watchdog interval; zero: none

	Debug     bool   // for programs: log at debug level; New ignores it
	LogFormat string // for programs: text or json; New ignores it
	Log       *slog.Logger
}

// Providers are the values that Options.Provider may have besides "".
func Providers() []string { return []string{"aws", "gcp", "azure", "proxmox", "none"} }

// withDefaults returns a copy of o whose zero fields are filled in.
func (o *Options) withDefaults() *Options {
	if o == nil {
		o = &Options{}
	}
	c := *o
	c.IdentityDir = or(c.IdentityDir, filepath.Join(defaultDir, "identity"))
	c.UserDataDir = or(c.UserDataDir, c.IdentityDir)
	c.KeysDir = or(c.KeysDir, filepath.Join(defaultDir, "keys"))
	c.RecvDir = or(c.RecvDir, filepath.Join(defaultDir, "recv"))
	c.IdentityMode, c.KeysMode, c.RecvMode = or(c.IdentityMode, 0o600), or(c.KeysMode, 0o640), or(c.RecvMode, 0o640)
	c.ReportInterval = or(c.ReportInterval, defaultReportInterval)
	c.SpotPollInterval = or(c.SpotPollInterval, defaultSpotPollInterval)
	c.Kind = or(c.Kind, c.InstanceID.Kind())
	c.Log = or(c.Log, slog.New(slog.DiscardHandler))
	if c.Now == nil {
		c.Now = time.Now
	}
	return &c
}

// or returns v, or the default if v is zero.
func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// validate returns every mistake at once, so that all can be fixed at once. Each
// is Invalid and is named after its environment variable.
func (o *Options) validate() error {
	return errors.Join(
		o.validateIdentity(),
		validateAddrs(envRegistrationAddr, "8992", o.RegistrationAddrs),
		validateAddrs(envAgentAddr, "8994", o.AgentAddrs),
		validateMode(envIdentityMode, o.IdentityMode),
		validateMode(envKeysMode, o.KeysMode),
		validateMode(envRecvMode, o.RecvMode),
		validateInterval(envReportInterval, o.ReportInterval),
		validateInterval(envSpotPollInterval, o.SpotPollInterval),
		validate.Setting(envWatchdog, o.Watchdog, 24*time.Hour),
		validateProvider(o.Provider),
		validateURL(o.MetadataURL),
		validateEventsVersion(o.AzureEventsVersion),
		validateHealthAddr(o.HealthAddr),
		validate.Optional("detector", "leave it out to have one found", o.Detector),
	)
}

func (o *Options) validateIdentity() error {
	if o.InstanceID == "" {
		return nstance.FieldError(envInstanceID, "set it to the ID that the machine's user data carries", "no instance ID")
	}
	if _, err := nstance.ParseInstanceID(string(o.InstanceID)); err != nil {
		return nstance.FieldError(envInstanceID, "set it to the ID that the machine's user data carries", "%v", err)
	}
	if o.Kind != o.InstanceID.Kind() {
		return nstance.FieldError(envInstanceKind, "leave it out, or set it to "+string(o.InstanceID.Kind()),
			"kind %q is not the one in instance ID %s", o.Kind, o.InstanceID)
	}
	return nil
}

func validateAddrs(field, port string, addrs []string) error {
	remedy := "set it to host:" + port + ", or to several, separated by commas"
	if len(addrs) == 0 {
		return nstance.FieldError(field, remedy, "no server address")
	}
	for _, addr := range addrs {
		if !validAddr(addr) {
			return nstance.FieldError(field, remedy, "%q is not host:port", addr)
		}
	}
	return nil
}

func validAddr(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || strings.ContainsAny(host, " /") {
		return false
	}
	n, err := net.LookupPort("tcp", port)
	return err == nil && n > 0
}

func validateMode(field string, mode fs.FileMode) error {
	const remedy = "use an octal mode such as 0640: readable by its owner, closed to other users, not executable"
	if mode&^0o660 != 0 || mode&0o600 != 0o600 {
		return nstance.FieldError(field, remedy, "mode %#o is not permitted", mode)
	}
	return nil
}

func validateInterval(field string, d time.Duration) error {
	return validate.Duration(field, d, minInterval, 24*time.Hour)
}

func validateProvider(p string) error {
	if p == "" || slices.Contains(Providers(), p) {
		return nil
	}
	return nstance.FieldError(envProvider, "use "+strings.Join(Providers(), ", ")+", or leave it out to have it found", "provider %q is unknown", p)
}

func validateURL(s string) error {
	u, err := url.Parse(s)
	if s == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" &&
		u.User == nil && u.RawQuery == "" && u.Fragment == "" {
		return nil
	}
	return nstance.FieldError(envMetadataURL, "use a base URL such as http://169.254.169.254", "is not the base of an HTTP URL")
}

func validateEventsVersion(version string) error {
	if _, err := spot.NewAzure(&spot.Options{AzureEventsVersion: version}); err != nil {
		return nstance.FieldError(envAzureEvents, "use a date such as 2020-07-01, or leave it out", "is not an api-version")
	}
	return nil
}

func validateHealthAddr(addr string) error {
	if addr == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nstance.FieldError(envHealthAddr, "use :port for loopback, or host:port", "%q is not an address", addr)
	}
	return nil
}
