package agent_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
)

const someID = "acc06bgm7733st2576nx5jht4ecjw"

// minimalVariables are the required variables.
func minimalVariables() map[string]string {
	return map[string]string{
		"NSTANCE_INSTANCE_ID":              someID,
		"NSTANCE_SERVER_REGISTRATION_ADDR": "server:8992",
		"NSTANCE_SERVER_AGENT_ADDR":        "server:8994, 10.0.0.2:8994,[fd00::1]:8994",
	}
}

// agentFromEnv reads the environment and creates the agent, as programs do.
func agentFromEnv(vars map[string]string) (*agent.Options, error) {
	o, err := agent.FromEnv(func(name string) string { return vars[name] })
	if err != nil {
		return nil, err
	}
	_, err = agent.New(o)
	return o, err
}

func TestFromEnv(t *testing.T) {
	t.Parallel()
	t.Run("the required variables are enough", func(t *testing.T) {
		o, err := agentFromEnv(minimalVariables())
		require.NoError(t, err)
		require.Equal(t, nstance.InstanceID(someID), o.InstanceID)
		require.Equal(t, []string{"server:8994", "10.0.0.2:8994", "[fd00::1]:8994"}, o.AgentAddrs)
		require.Empty(t, o.DrainHook)
	})
	t.Run("every variable is used", func(t *testing.T) {
		vars := minimalVariables()
		for name, value := range map[string]string{
			"NSTANCE_INSTANCE_KIND": "acc", "NSTANCE_USER_DATA_DIR": "/u", "NSTANCE_IDENTITY_DIR": "/i", "NSTANCE_IDENTITY_MODE": "0640",
			"NSTANCE_KEYS_DIR": "/k", "NSTANCE_KEYS_MODE": "600", "NSTANCE_RECV_DIR": "/r", "NSTANCE_RECV_MODE": "0660",
			"NSTANCE_REPORT_INTERVAL": "30s", "NSTANCE_SPOT_POLL_INTERVAL": "5s", "NSTANCE_PROVIDER": "gcp",
			"NSTANCE_METADATA_URL": "http://127.0.0.1:1", "NSTANCE_HEALTH_ADDR": ":8995",
			"NSTANCE_AZURE_EVENTS_VERSION": "2025-06-01",
			"NSTANCE_DRAIN_HOOK":           "/usr/bin/drain --now", "NSTANCE_DEBUG": "true",
			"NOTIFY_SOCKET": "@systemd", "WATCHDOG_USEC": "30000000",
		} {
			vars[name] = value
		}
		o, err := agentFromEnv(vars)
		require.NoError(t, err)
		require.Equal(t, &agent.Options{
			InstanceID: someID, Kind: "acc",
			RegistrationAddrs: []string{"server:8992"}, AgentAddrs: o.AgentAddrs,
			UserDataDir: "/u", IdentityDir: "/i", IdentityMode: 0o640, KeysDir: "/k", KeysMode: 0o600, RecvDir: "/r", RecvMode: 0o660,
			ReportInterval: 30 * time.Second, SpotPollInterval: 5 * time.Second,
			Provider: "gcp", MetadataURL: "http://127.0.0.1:1", HealthAddr: ":8995",
			AzureEventsVersion: "2025-06-01",
			DrainHook:          []string{"/usr/bin/drain", "--now"}, Debug: true,
			NotifySocket: "@systemd", Watchdog: 30 * time.Second,
		}, o)
	})
	t.Run("every variable is listed, with its default", func(t *testing.T) {
		listed := map[string]bool{}
		for _, v := range agent.Variables() {
			listed[v.Name] = true
			require.Regexp(t, `\((default|required)`, v.Help, v.Name)
		}
		asked := map[string]bool{}
		_, err := agent.FromEnv(func(name string) string { asked[name] = true; return "" })
		require.NoError(t, err)
		delete(asked, "NOTIFY_SOCKET")
		delete(asked, "WATCHDOG_USEC")
		require.Equal(t, asked, listed)
	})
	t.Run("a hook with spaces in its words is a JSON array", func(t *testing.T) {
		vars := minimalVariables()
		vars["NSTANCE_DRAIN_HOOK"] = `["/opt/my app/drain", "--why", "$HOME"]`
		o, err := agentFromEnv(vars)
		require.NoError(t, err)
		require.Equal(t, []string{"/opt/my app/drain", "--why", "$HOME"}, o.DrainHook)
	})
}

func TestOptionErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, value, says string }{
		{"NSTANCE_INSTANCE_ID", "", "no instance ID"},
		{"NSTANCE_INSTANCE_ID", "i-123", "5 characters"},
		{"NSTANCE_INSTANCE_KIND", "xyz", "acc"},
		{"NSTANCE_SERVER_REGISTRATION_ADDR", "", "8992"},
		{"NSTANCE_SERVER_AGENT_ADDR", " , ", "8994"},
		{"NSTANCE_SERVER_AGENT_ADDR", "server", "not host:port"},
		{"NSTANCE_SERVER_AGENT_ADDR", "https://server:8994", "not host:port"},
		{"NSTANCE_SERVER_AGENT_ADDR", ":8994", "not host:port"},
		{"NSTANCE_SERVER_AGENT_ADDR", "server:0", "not host:port"},
		{"NSTANCE_REPORT_INTERVAL", "60", "such as 2s"},
		{"NSTANCE_REPORT_INTERVAL", "0s", "positive"},
		{"NSTANCE_REPORT_INTERVAL", "-1m", "positive"},
		{"NSTANCE_REPORT_INTERVAL", "1ms", "too short"},
		{"NSTANCE_SPOT_POLL_INTERVAL", "soon", "such as 2s"},
		{"NSTANCE_IDENTITY_MODE", "0644", "other users"},
		{"NSTANCE_IDENTITY_MODE", "rw-------", "octal"},
		{"NSTANCE_KEYS_MODE", "0400", "owner"},
		{"NSTANCE_RECV_MODE", "0750", "executable"},
		{"NSTANCE_RECV_MODE", "0", "octal"},
		{"NSTANCE_PROVIDER", "amazon", "aws"},
		{"NSTANCE_METADATA_URL", "169.254.169.254", "http://"},
		{"NSTANCE_METADATA_URL", "http://x/?token=secret", "http://"},
		{"NSTANCE_AZURE_EVENTS_VERSION", "latest", "2020-07-01"},
		{"NSTANCE_HEALTH_ADDR", "8990", ":port"},
		{"NSTANCE_DRAIN_HOOK", "[", "JSON"},
		{"NSTANCE_DRAIN_HOOK", `[""]`, "JSON"},
		{"NSTANCE_DEBUG", "very", "true or false"},
		{"WATCHDOG_USEC", "30s", "systemd"},
	} {
		t.Run(fmt.Sprintf("%s=%s", c.name, c.value), func(t *testing.T) {
			vars := minimalVariables()
			vars[c.name] = c.value
			_, err := agentFromEnv(vars)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, c.name+":")
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), "secret")
		})
	}
	t.Run("all errors at once", func(t *testing.T) {
		_, err := agent.New(nil)
		for _, name := range []string{"NSTANCE_INSTANCE_ID", "NSTANCE_SERVER_REGISTRATION_ADDR", "NSTANCE_SERVER_AGENT_ADDR"} {
			require.ErrorContains(t, err, name)
		}
	})
}

func TestNewDoesNotChangeOptions(t *testing.T) {
	t.Parallel()
	o := &agent.Options{InstanceID: someID, RegistrationAddrs: []string{"a:1"}, AgentAddrs: []string{"a:2"}}
	before := *o
	_, err := agent.New(o)
	require.NoError(t, err)
	require.Equal(t, &before, o)
}

func FuzzFromEnv(f *testing.F) {
	f.Add("NSTANCE_DRAIN_HOOK", `["a","b"]`)
	f.Add("NSTANCE_IDENTITY_MODE", "0640")
	f.Add("NSTANCE_REPORT_INTERVAL", "1h")
	f.Add("NSTANCE_SERVER_AGENT_ADDR", "a:1,b:2")
	f.Add("NSTANCE_INSTANCE_ID", someID)
	f.Add("NSTANCE_METADATA_URL", "http://[::1]:80")
	f.Add("WATCHDOG_USEC", "1")
	f.Fuzz(func(t *testing.T, name, value string) {
		vars := minimalVariables()
		vars[name] = value
		o, err := agentFromEnv(vars)
		if err != nil {
			require.Equal(t, nstance.Invalid, nstance.CodeOf(err))
			require.ErrorContains(t, err, name)
			return
		}
		require.NotEmpty(t, o.AgentAddrs)
		require.GreaterOrEqual(t, o.ReportInterval, time.Duration(0))
	})
}

func ExampleFromEnv() {
	o, err := agent.FromEnv(os.Getenv)
	if err != nil {
		fmt.Println(err)
		return
	}
	o.InstanceID = "i-0123456789abcdef0" // an ID of the cloud
	o.RegistrationAddrs, o.AgentAddrs = []string{"server:8992"}, []string{"server:8994"}
	_, err = agent.New(o)
	fmt.Println(err)
	// Output:
	// NSTANCE_INSTANCE_ID: instance_id: "i-0123456789abcdef0" has 19 characters (use the 29-character ID that instance list prints) (set it to the ID that the machine's user data carries)
}
