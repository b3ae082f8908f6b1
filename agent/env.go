package agent

import (
	"encoding/json"
	"errors"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/duration"
)

// The environment variables that FromEnv reads.
const (
	envRegistrationAddr = "NSTANCE_SERVER_REGISTRATION_ADDR"
	envAgentAddr        = "NSTANCE_SERVER_AGENT_ADDR"
	envInstanceID       = "NSTANCE_INSTANCE_ID"
	envInstanceKind     = "NSTANCE_INSTANCE_KIND"
	envUserDataDir      = "NSTANCE_USER_DATA_DIR"
	envIdentityDir      = "NSTANCE_IDENTITY_DIR"
	envIdentityMode     = "NSTANCE_IDENTITY_MODE"
	envKeysDir          = "NSTANCE_KEYS_DIR"
	envKeysMode         = "NSTANCE_KEYS_MODE"
	envRecvDir          = "NSTANCE_RECV_DIR"
	envRecvMode         = "NSTANCE_RECV_MODE"
	envReportInterval   = "NSTANCE_REPORT_INTERVAL"
	envSpotPollInterval = "NSTANCE_SPOT_POLL_INTERVAL"
	envProvider         = "NSTANCE_PROVIDER"
	envMetadataURL      = "NSTANCE_METADATA_URL"
	envAzureEvents      = "NSTANCE_AZURE_EVENTS_VERSION"
	envHealthAddr       = "NSTANCE_HEALTH_ADDR"
	envDrainHook        = "NSTANCE_DRAIN_HOOK"
	envProbes           = "NSTANCE_PROBES"
	envDebug            = "NSTANCE_DEBUG"
	envLogFormat        = "NSTANCE_LOG_FORMAT"
	envNotifySocket     = "NOTIFY_SOCKET" // systemd's, as is the next: sd_notify(3)
	envWatchdog         = "WATCHDOG_USEC"
)

// A Variable is one environment variable that FromEnv reads.
type Variable struct {
	Name string
	Help string // one line, with the default
}

// Variables lists the variables that FromEnv reads, the required ones first.
// Variables that systemd sets are left out.
func Variables() []Variable {
	return []Variable{
		{envInstanceID, "this machine's instance ID (required)"},
		{envInstanceKind, "the kind in that ID, as a check (default: not checked)"},
		{envRegistrationAddr, "host:port of the registration listeners, separated by commas (required)"},
		{envAgentAddr, "host:port of the agent listeners, separated by commas (required)"},
		{envUserDataDir, "where user data puts nonce.jwt and ca.crt (default: the folder of the certificate)"},
		{envIdentityDir, "where the certificate goes (default " + defaultDir + "/identity)"},
		{envIdentityMode, "mode of files there (default 0600)"},
		{envKeysDir, "where keys made on request go (default " + defaultDir + "/keys)"},
		{envKeysMode, "mode of files there (default 0640)"},
		{envRecvDir, "where files from the server go (default " + defaultDir + "/recv)"},
		{envRecvMode, "mode of files there (default 0640)"},
		{envReportInterval, "time between health reports, unless the server sets it (default 1m)"},
		{envSpotPollInterval, "time between reads of the metadata service (default 2s)"},
		{envProvider, "the cloud: " + strings.Join(Providers(), ", ") + " (default: found by probing)"},
		{envMetadataURL, "base URL of the metadata service (default: the cloud's)"},
		{envAzureEvents, "api-version of Azure's scheduled events: a later one has rebalance recommendations (default 2020-07-01)"},
		{envHealthAddr, "address of GET /healthz, :port for loopback (default: not served)"},
		{envDrainHook, "command that empties the machine: words, or a JSON array of strings (default: none)"},
		{envProbes, "path of a file of health probes, a JSON array (default: none)"},
		{envDebug, "true for debug logs (default false)"},
		{envLogFormat, "format of the log: text or json (default text)"},
	}
}

// FromEnv returns the options that the environment describes, through a getenv
// such as os.Getenv. An empty variable is not set. It fails with Invalid errors,
// each naming its variable, and the file that the variable names. Missing
// variables are reported by New, so that a program may set those options itself.
func FromEnv(getenv func(string) string) (*Options, error) {
	e := env{get: getenv}
	o := &Options{
		InstanceID:        nstance.InstanceID(e.text(envInstanceID)),
		Kind:              nstance.InstanceKind(e.text(envInstanceKind)),
		RegistrationAddrs: e.list(envRegistrationAddr),
		AgentAddrs:        e.list(envAgentAddr),
		UserDataDir:       e.text(envUserDataDir),
		IdentityDir:       e.text(envIdentityDir),
		IdentityMode:      e.mode(envIdentityMode),
		KeysDir:           e.text(envKeysDir),
		KeysMode:          e.mode(envKeysMode),
		RecvDir:           e.text(envRecvDir),
		RecvMode:          e.mode(envRecvMode),
		ReportInterval:    e.duration(envReportInterval),
		SpotPollInterval:  e.duration(envSpotPollInterval),
		Provider:          e.text(envProvider),
		MetadataURL:       e.text(envMetadataURL),

		AzureEventsVersion: e.text(envAzureEvents),

		HealthAddr:   e.text(envHealthAddr),
		DrainHook:    e.command(envDrainHook),
		Probes:       e.probes(envProbes),
		Debug:        e.flag(envDebug),
		LogFormat:    e.text(envLogFormat),
		NotifySocket: e.text(envNotifySocket),
		Watchdog:     e.microseconds(envWatchdog),
	}
	if err := errors.Join(e.errs...); err != nil {
		return nil, err
	}
	return o, nil
}

// env reads variables and collects their errors.
type env struct {
	get  func(string) string
	errs []error
}

func (e *env) text(name string) string { return strings.TrimSpace(e.get(name)) }

func (e *env) fail(name, remedy, format string, args ...any) {
	e.errs = append(e.errs, nstance.FieldError(name, remedy, format, args...))
}

func (e *env) list(name string) []string {
	var out []string
	for part := range strings.SplitSeq(e.text(name), ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// duration refuses zero and less, which mean "default" in Options.
func (e *env) duration(name string) time.Duration {
	s := e.text(name)
	if s == "" {
		return 0
	}
	d, err := duration.Parse(s)
	if err != nil || d <= 0 {
		e.fail(name, "use a duration such as 2s or 1m", "%q is not a positive duration", s)
		return 0
	}
	return d
}

func (e *env) mode(name string) fs.FileMode {
	s := e.text(name)
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n == 0 || n > 0o777 {
		e.fail(name, "use an octal mode such as 0640", "%q is not a file mode", s)
		return 0
	}
	return fs.FileMode(n)
}

func (e *env) flag(name string) bool {
	s := e.text(name)
	if s == "" {
		return false
	}
	b, err := strconv.ParseBool(s)
	if err != nil {
		e.fail(name, "use true or false", "%q is neither true nor false", s)
	}
	return b
}

// command accepts words separated by spaces or, for words with spaces in them, a
// JSON array. There is no shell: nothing is expanded.
func (e *env) command(name string) []string {
	s := e.text(name)
	if !strings.HasPrefix(s, "[") {
		return strings.Fields(s)
	}
	var argv []string
	if err := json.Unmarshal([]byte(s), &argv); err != nil || len(argv) == 0 || argv[0] == "" {
		e.fail(name, `use words, or a JSON array such as ["/usr/local/bin/drain","--now"]`, "%q is not a command", s)
		return nil
	}
	return argv
}

func (e *env) microseconds(name string) time.Duration {
	s := e.text(name)
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s, 10, 40)
	if err != nil {
		e.fail(name, "leave it to systemd (WatchdogSec=)", "%q is not a number of microseconds", s)
		return 0
	}
	return time.Duration(n) * time.Microsecond
}
