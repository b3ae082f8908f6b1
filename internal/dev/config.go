package dev

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/server"
)

// The one group and where it belongs.
const (
	clusterID = nstance.ClusterID("dev")
	shardID   = nstance.ShardID("local")
	groupID   = nstance.GroupID("web")
)

// userData is the template of the user data.
const userData = `{
  "env": {
    "NSTANCE_INSTANCE_ID": "{{.Instance.ID}}",
    "NSTANCE_INSTANCE_KIND": "{{.Instance.Kind}}",
    "NSTANCE_SERVER_REGISTRATION_ADDR": "@registration@",
    "NSTANCE_SERVER_AGENT_ADDR": "@agent@",
    "NSTANCE_SPOT_POLL_INTERVAL": "2s",
    "NSTANCE_DRAIN_HOOK": {{json .Vars.drain_hook}},
    "NSTANCE_DEV_RELEASE": "@release@"
  },
  "files": {
    "identity/nonce.jwt": {{json .Nonce}},
    "identity/ca.crt": {{json .Cluster.CACert}}
  }
}`

type object = map[string]any

// A site is where one server is. Servers of one shard differ in bind only.
type site struct {
	bind                server.Addresses
	registration, agent []string // what machines are told: all servers
	n                   int      // number of the server
	shared              bool     // the servers are processes of their own
}

// anyPort is for ports that only the servers themselves need to know.
const anyPort = "127.0.0.1:0"

// alone is the site of the only server, which finds free ports by itself.
func alone(http string) site {
	return site{
		bind:         server.Addresses{HTTP: http, Registration: anyPort, Operator: anyPort, Agent: anyPort},
		registration: []string{"{{.Server.RegistrationAddr}}"}, agent: []string{"{{.Server.AgentAddr}}"},
	}
}

// configuration writes the shard's configuration. release is a part of the
// user data, so that another one makes every machine outdated.
func configuration(o *Options, c interface {
	configure(conf configFile, n int, shared bool)
}, at site, release int) ([]byte, error) {
	hook, err := json.Marshal(o.DrainHook)
	if err != nil {
		return nil, nstance.Errorf(nstance.Internal, "drain hook: %w", err)
	}
	words := strings.NewReplacer(
		"@release@", strconv.Itoa(release),
		"@registration@", strings.Join(at.registration, ","), "@agent@", strings.Join(at.agent, ","),
	)
	group := object{"template": groupID, "size": o.size(), "drain_timeout": o.drainTimeout().String()}
	groups := object{string(groupID): group}
	if o.Scenario == Bridge {
		groups[string(plainGroupID)] = maps.Clone(group)
		group["warm_pool"] = object{"size": o.Count, "mode": o.Park}
	}
	conf := configFile{
		words: words,
		shard: object{
			"id":               shardID,
			"bind":             object{"http": at.bind.HTTP, "registration": at.bind.Registration, "operator": at.bind.Operator, "agent": at.bind.Agent, "peer": anyPort},
			"status_page":      object{"detail": "full"},
			"election":         object{"ttl": o.ElectionTTL.String()},
			"health_interval":  "5s",
			"create_rate":      object{"per_second": 1000, "burst": 1000},
			"shutdown_timeout": "2s",
			"max_change":       "100%", // a rollout is about all members
		},
		template: object{
			"kind": "web", "arch": arch(),
			"market":               object{"type": nstance.Spot},
			"userdata":             object{"content": words.Replace(userData)},
			"vars":                 object{"drain_hook": string(hook)},
			"registration_timeout": "1m", "launch_timeout": "2m",
			"files": object{
				"web.env": object{"kind": "env", "env": object{"INSTANCE": "{{.Instance.ID}}", "SHARD": "{{.Server.Shard}}"}},
				"motd":    object{"kind": "string", "content": "one of the machines of {{.Cluster.ID}}, whose shard is {{.Server.Shard}}\n"},
			},
		},
		top: object{"cluster": object{"id": clusterID}, "groups": object{string(nstance.DefaultTenant): groups}},
	}
	if o.Scenario == Bridge {
		conf.template["args"] = bridgeArgs()
	}
	c.configure(conf, at.n, at.shared)
	conf.top["shard"], conf.top["templates"] = conf.shard, object{string(groupID): conf.template}
	return json.MarshalIndent(conf.top, "", "  ")
}

func arch() nstance.Arch {
	if runtime.GOARCH == "arm64" {
		return nstance.ARM64
	}
	return nstance.AMD64
}

// A source is the configuration: a file, which the person may edit.
type source struct{ path string }

func (s source) set(text []byte) error {
	if err := os.WriteFile(s.path+".new", text, 0o600); err != nil {
		return nstance.Errorf(nstance.Denied, "%w", err)
	}
	if err := os.Rename(s.path+".new", s.path); err != nil {
		return nstance.Errorf(nstance.Denied, "%w", err)
	}
	return nil
}

// read is a server.Source.
func (s source) read(context.Context) (string, []byte, error) {
	text, err := os.ReadFile(s.path)
	if err != nil {
		return "", nil, nstance.Errorf(nstance.Unavailable, "%w", err)
	}
	return filepath.Base(s.path), text, nil
}
