package config_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/stretchr/testify/require"
)

// A setting of the shard is on line 4, a template on line 5, a group on line 6.
func shard(s string) string    { return with(s, "", "") }
func template(s string) string { return with("", `"web": {"kind": "web", "arch": "amd64", `+s+`}`, "") }
func hook(s string) string {
	return strings.Replace(with("", "", ""), `"templates"`, `"webhooks": {"pager": {`+s+`}}, "templates"`, 1)
}
func group(s string) string { return with("", web, `"web": {"template": "web", "size": 1, `+s+`}`) }

func TestBadInput(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		// Syntax.
		{"an empty file", ``,
			`c:1:1: parsing value: unexpected EOF (correct the JSON)`},
		{"a missing comma", "{\n  \"cluster\": {}\n  \"shard\": {}\n}",
			`c:3:3: invalid character '"' after object value (expecting ',' or '}') (correct the JSON)`},
		{"an endless comment", `{ /* `,
			`c:1:3: parsing comment: unexpected EOF (correct the JSON)`},
		{"not an object", `[1]`,
			`c:1:1: must be an object, not a list (write an object)`},
		{"not UTF-8", "{\n \"\xff\": 1}",
			`c:2:3: is not UTF-8 (save the file as UTF-8)`},
		{"too deep", strings.Repeat("[", 200),
			`c:1:101: more than 100 levels of nesting (flatten it)`},
		{"too deep behind comments and strings", `{"[[": /* ] */ ` + strings.Repeat("[ // ]\n", 200),
			`c:100:1: more than 100 levels of nesting (flatten it)`},
		{"too long", strings.Repeat(" ", 4<<20+1),
			`c:1:1: has more than 4194304 bytes (split the shard)`},

		// Names of settings.
		{"a mistyped setting", group(`"siez": 3`),
			`groups.default.web.siez: c:6:62: unknown setting "siez" (did you mean "size"?)`},
		{"a mistyped setting at the top", `{"clutser": {}, "cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "sim"}}}`,
			`clutser: c:1:2: unknown setting "clutser" (did you mean "cluster"?)`},
		{"capitals", group(`"Protect": true`),
			`groups.default.web.Protect: c:6:62: unknown setting "Protect" (did you mean "protect"?)`},
		{"a setting of nothing like it", template(`"userdata": {"content": "x", "colour": 1}`),
			`templates.web.userdata.colour: c:5:84: unknown setting "colour" (valid here: source, encoding, content, sha256)`},
		{"an awkward name", group(`"a.b": 1`),
			`groups.default.web["a.b"]: c:6:62: unknown setting "a.b" (valid here: template, drain_timeout, rollout, protect, spread, order, warm_pool, drill, on_reclaim, on_rebalance, on_maintenance, on_drain_timeout, size, instance_type, instance_types, subnet_pool, load_balancers, args, vars, market)`},
		{"a duplicate setting", group(`"size": 2`),
			`groups.default.web.size: c:6:62: is given twice (keep one of them)`},
		{"a duplicate within args", group(`"args": {"a": [{"b": 1, "b": 1}]}`),
			`groups.default.web.args.a[0].b: c:6:86: is given twice (keep one of them)`},
		{"a duplicate group", with("", web, `"a": {"template": "web", "size": 1}, "a": {"template": "web", "size": 2}`),
			`groups.default.a: c:6:61: is given twice (keep one of them)`},

		{"a warm pool without a size", group(`"warm_pool": {}`),
			`groups.default.web.warm_pool.size: c:6:75: is missing (add it)`},
		{"a warm pool of machines that sleep otherwise", group(`"warm_pool": {"size": 1, "mode": "frozen"}`),
			`groups.default.web.warm_pool.mode: c:6:95: unknown word "frozen" (valid here: stopped, hibernated, running)`},

		// Secrets.
		{"a source of secrets that is unknown", `{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "sim"}, "secrets": {"source": "vault://me:hunter2@x"}}}`,
			`shard.secrets.source: c:1:98: names no source of secrets (use a URL with store, env, file, awssecretsmanager, awsparamstore, gcpsecretmanager, azurekeyvault)`},
		{"a place in storage", `{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "sim"}, "secrets": {"source": "store://secret"}}}`,
			`shard.secrets.source: c:1:98: is not a URL of scheme store (write store: or scheme://...)`},

		// Provisioning.
		{"tracked secrets without any", template(`"track": ["secrets"]`),
			`templates.web.track[0]: c:5:65: the template has no file of kind secret (remove it)`},
		{"an unknown thing to track", template(`"track": ["varz"]`),
			`templates.web.track[0]: c:5:65: unknown word "varz" (did you mean "vars"?)`},
		{"a tracked image without one", template(`"track": ["image"]`),
			`templates.web.track[0]: c:5:65: the template names no image (name an image, or remove it)`},
		{"tracked user data that is not fetched", template(`"userdata": {"content": "x"}, "track": ["userdata"]`),
			`templates.web.track[0]: c:5:95: user data that is not fetched is tracked anyway (remove it)`},
		{"an image that is not there", template(`"image": "base"`),
			`templates.web.image: c:5:64: image "base" is not in images (none is defined)`},
		{"an image twice over", `{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "sim"}}, "images": {"base": {"id": "x", "name": "y"}}}`,
			`images.base.id: c:1:103: is given beside owner or name (keep one of them)`},
		{"an image without anything", `{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "sim"}}, "images": {"base": {"owner": "x"}}}`,
			`images.base.name: c:1:96: is missing (name it, or give its id)`},
		{"an image to look for where there are none", `{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "local"}}, "images": {"base": {"name": "x"}}}`,
			`images.base.name: c:1:107: provider local cannot look for images (give its id)`},
		{"a load balancer where there are none", `{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "local"}}, "load_balancers": {"front": {"id": "x"}}}`,
			`load_balancers.front: c:1:107: provider local has no load balancers (remove it)`},
		{"a load balancer that is not there", group(`"load_balancers": ["front"]`),
			`groups.default.web.load_balancers[0]: c:6:81: load balancer "front" is not in load_balancers (none is defined)`},
		{"user data at no URL", template(`"userdata": {"source": "url", "content": "ftp://x/y"}`),
			`templates.web.userdata.content: c:5:96: "ftp://x/y" is no address that user data can be fetched from (write https://host/path, http://host/path or storage:userdata/name)`},
		{"user data at a URL with a password", template(`"userdata": {"source": "url", "content": "https://a:b@x/y"}`),
			`templates.web.userdata.content: c:5:96: holds a user name or password (leave it out: the address is stored and shown)`},
		{"user data among secrets", template(`"userdata": {"source": "url", "content": "storage:userdata/../secret/ca"}`),
			`templates.web.userdata.content: c:5:96: "storage:userdata/../secret/ca" names no object below userdata/ (write https://host/path, http://host/path or storage:userdata/name)`},
		{"no digest", template(`"userdata": {"source": "url", "content": "https://x/y", "sha256": "abc"}`),
			`templates.web.userdata.sha256: c:5:121: "abc" is no SHA-256 (write what sha256sum prints: 64 digits, lower case)`},
		{"a digest of nothing fetched", template(`"userdata": {"content": "x", "sha256": "` + strings.Repeat("a", 64) + `"}`),
			`templates.web.userdata.sha256: c:5:94: means nothing for content that is not fetched (remove it)`},
		{"gzip within JSON", template(`"userdata": {"encoding": "gzip", "content": "x"}`),
			`templates.web.userdata.encoding: c:5:80: gzip cannot be written into this file as it is (use base64+gzip)`},
		{"packed user data that is not", template(`"userdata": {"encoding": "base64+gzip", "content": "eHh4"}`),
			`templates.web.userdata.content: c:5:106: is not gzip: unexpected EOF (compress it again)`},

		// Types.
		{"a number in quotes", group(`"rollout": {"halt_after": "2"}`),
			`groups.default.web.rollout.halt_after: c:6:88: must be a number, not a string (write a number)`},
		{"a number for a string", group(`"vars": {"port": 80}`),
			`groups.default.web.vars.port: c:6:79: must be a string, not a number (write a string)`},
		{"a string for a list", shard(`"subnet_pools": {}`),
			`shard.subnet_pools: c:4:1: is given twice (keep one of them)`},
		{"a string for truth", group(`"protect": "yes"`),
			`groups.default.web.protect: c:6:73: must be true or false, not a string (write true or false)`},
		{"null", group(`"market": null`),
			`groups.default.web.market: c:6:72: must be an object, not null (leave the setting out instead)`},
		{"a list for a map", `{"groups": {"default": []}, "cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "sim"}}}`,
			`groups.default: c:1:24: must be an object, not a list (write an object)`},
		{"args that are no object", group(`"args": [1]`),
			`groups.default.web.args: c:6:70: must be an object, not a list (write an object)`},
		{"a bare duration", group(`"drain_timeout": 60`),
			`groups.default.web.drain_timeout: c:6:79: must be a duration such as "90s", "5m" or "7d", not a number (write a duration such as "90s", "5m" or "7d")`},
		{"an object in a list", group(`"instance_types": [{}]`),
			`groups.default.web.instance_types[0]: c:6:81: must be a string, not an object (write a string)`},

		// Values.
		{"a missing setting", `{"cluster": {}, "shard": {"id": "a", "provider": {"kind": "sim"}}}`,
			`cluster.id: c:1:13: is missing (add it)`},
		{"no content", template(`"userdata": {}`),
			`templates.web.userdata.content: c:5:67: is missing (add it)`},
		{"no size anywhere", with("", web, `"web": {"template": "web"}`),
			`groups.default.web.size: c:6:31: is missing (add it here or to the template)`},
		{"a negative size", with("", web, `"web": {"template": "web", "size": -1}`),
			`groups.default.web.size: c:6:59: -1 is out of range (use 0 to 100000)`},
		{"half a machine", with("", web, `"web": {"template": "web", "size": 1.5}`),
			`groups.default.web.size: c:6:59: 1.5 is not whole (write a whole number)`},
		{"an endless number", with("", web, `"web": {"template": "web", "size": 1e999}`),
			`groups.default.web.size: c:6:59: 1e999 is out of range (use 0 to 100000)`},
		{"a vast argument", group(`"args": {"n": 1e9999999}`),
			`groups.default.web.args: c:6:70: number 1e9999999 has too large an exponent (use a number that the provider can hold)`},
		{"a bad name", with("", web, `"-web": {"template": "web", "size": 1}`),
			`groups.default.-web: c:6:24: name "-web" has a misplaced hyphen (use at most 32 of a-z, 0-9 and single hyphens, a letter or digit at both ends)`},
		{"a bad cluster name", strings.Replace(minimal, "demo", "Demo", 1),
			`cluster.id: c:2:21: name "Demo" contains 'D' (use at most 32 of a-z, 0-9 and single hyphens, a letter or digit at both ends)`},
		{"a bad kind", with("", `"web": {"kind": "webs", "arch": "amd64"}`, ""),
			`templates.web.kind: c:5:31: kind "webs" is not valid (use exactly three letters a-z)`},
		{"an unknown word", with("", `"web": {"kind": "web", "arch": "arm46"}`, ""),
			`templates.web.arch: c:5:46: unknown word "arm46" (did you mean "arm64"?)`},
		{"an unknown provider", strings.Replace(minimal, "local", "openstack", 1),
			`shard.provider.kind: c:3:45: this program has no provider "openstack" (valid here: local, sim)`},
		{"an empty string", group(`"instance_type": ""`),
			`groups.default.web.instance_type: c:6:79: is empty (leave the setting out instead)`},
		{"an empty list", group(`"instance_types": []`),
			`groups.default.web.instance_types: c:6:80: is empty (name at least one, or leave the setting out)`},
		{"a type listed twice", group(`"instance_types": ["a", "b", "a"]`),
			`groups.default.web.instance_types[2]: c:6:91: "a" is listed twice (keep one of them)`},
		{"a nameless variable", group(`"vars": {"": "x"}`),
			`groups.default.web.vars[""]: c:6:71: a name is empty (give it a name)`},
		{"a term that is too long", shard(`"election": {"ttl": "90s"}`),
			`shard.election.ttl: c:4:21: "90s" is too long (use at most 60s)`},
		{"not an address", shard(`"bind": {"agent": "8994"}`),
			`shard.bind.agent: c:4:19: "8994" is not an address (write host:port, such as 127.0.0.1:8990)`},
		{"an address that cannot move", shard(`"leader_address": "10.0.0.100"`),
			`shard.leader_address: c:4:19: provider local has no addresses that move (leave it out, and give clients the addresses of all servers)`},
		{"nothing to connect to", shard(`"advertise": {"agent": ":8994"}`),
			`shard.advertise.agent: c:4:24: no peer can connect to ":8994" (name a host and a port)`},
		{"a price in words", group(`"market": {"type": "spot", "max_price": "cheap"}`),
			`groups.default.web.market.max_price: c:6:102: "cheap" is not a price (write a positive decimal such as "0.05")`},
		{"a surge in words", group(`"rollout": {"max_surge": "all"}`),
			`groups.default.web.rollout.max_surge: c:6:87: "all" is neither (write a count such as 1 or a percentage such as "20%")`},
		{"a broken template", template(`"userdata": {"content": "a\n{{.Vars.x"}`),
			`templates.web.userdata.content: c:5:79: template line 2: unclosed action (see the documentation of Go's text/template)`},
		{"a broken template in base64", template(`"userdata": {"encoding": "base64", "content": "e3s="}`),
			`templates.web.userdata.content: c:5:101: template line 1: unclosed action (see the documentation of Go's text/template)`},
		{"broken base64", template(`"userdata": {"encoding": "base64", "content": "e3s"}`),
			`templates.web.userdata.content: c:5:101: is not base64: illegal base64 data at input byte 0 (encode it again, with padding)`},
		{"a broken template in args", group(`"args": {"a": ["{{end}}"]}`),
			`groups.default.web.args.a[0]: c:6:77: template line 1: unexpected {{end}} (see the documentation of Go's text/template)`},
		{"a webhook without address", hook(`"timeout": "1s"`),
			`webhooks.pager.url: c:5:23: is missing (add it)`},
		{"a webhook that is none", hook(`"url": "ftp://example.org"`),
			`webhooks.pager.url: c:5:31: is not a URL of https or http (write one such as https://hooks.example.org/nstance)`},
		{"a webhook for an unknown event", hook(`"url": "https://example.org", "events": ["boot"]`),
			`webhooks.pager.events[0]: c:5:65: unknown word "boot" (valid here: notice, loss, missed_deadline, rebalance, maintenance, drain_ended, drain_started)`},
		{"a template of an unknown field", hook(`"url": "https://example.org", "template": "{{.Machine}}"`),
			`webhooks.pager.template: c:5:66: template: text:1:2: executing "text" at <.Machine>: can't evaluate field Machine in type webhook.Message (see docs/events.md for what a message has)`},
		{"a header that is none", hook(`"url": "https://example.org", "headers": {"X Team": "a"}`), `webhooks.pager.headers["X Team"]: c:5:76: is not the name of a header (write one such as X-Api-Key)`},
		{"a header of two lines", hook(`"url": "https://example.org", "headers": {"X-Team": "a\nb"}`), `webhooks.pager.headers.X-Team: c:5:76: has characters that a header cannot have (write one line)`},
		{"a header of the sender", hook(`"url": "https://example.org", "secret_headers": {"nstance-signature": "a"}`), `webhooks.pager.secret_headers.nstance-signature: c:5:94: is set by the sender (leave it out)`},
		{"a header that is a setting", hook(`"url": "https://example.org", "headers": {"content-type": "a"}`), `webhooks.pager.headers.content-type: c:5:82: is not set here (set content_type)`},
		{"a header given twice", hook(`"url": "https://example.org", "headers": {"X-Key": "a"}, "secret_headers": {"x-key": "a"}`), `webhooks.pager.secret_headers.x-key: c:5:109: is given twice (keep one of them)`},
		{"no time at all", shard(`"health_interval": "0s"`),
			`shard.health_interval: c:4:20: "0s" is too short (use at least 1ms)`},

		// What settings mean together.
		{"an unknown template", with("", web, `"web": {"template": "wbe", "size": 1}`),
			`groups.default.web.template: c:6:44: template "wbe" is not defined (did you mean "web"?)`},
		{"no template to name", with("", "", `"web": {"template": "web", "size": 1}`),
			`groups.default.web.template: c:6:44: template "web" is not defined (none is defined)`},
		{"an unknown subnet pool", group(`"subnet_pool": "worker"`),
			`groups.default.web.subnet_pool: c:6:77: subnet pool "worker" is not in shard.subnet_pools (did you mean "workers"?)`},
		{"an unknown subnet pool of a template", template(`"subnet_pool": "edge"`),
			`templates.web.subnet_pool: c:5:70: subnet pool "edge" is not in shard.subnet_pools (valid here: workers)`},
		{"both kinds of instance type", group(`"instance_type": "a", "instance_types": ["b"]`),
			`groups.default.web.instance_type: c:6:79: is given beside instance_types (keep one of them)`},
		{"a control plane on spot", template(`"role": "control-plane", "market": {"type": "spot"}`),
			`templates.web.market.type: c:5:99: spot is refused for role control-plane (use on-demand, or another role)`},
		{"a control plane's group on spot", with("", `"web": {"kind": "web", "arch": "amd64", "role": "control-plane"}`,
			`"web": {"template": "web", "size": 1, "market": {"type": "spot"}}`),
			`groups.default.web.market.type: c:6:81: spot is refused for role control-plane (use on-demand, or another role)`},
		{"a price on demand", group(`"market": {"max_price": "1"}`),
			`groups.default.web.market.max_price: c:6:86: means nothing on on-demand capacity (leave it out, or set type to spot)`},
		{"a fallback on demand", group(`"market": {"fallback": "on-demand"}`),
			`groups.default.web.market.fallback: c:6:85: means nothing on on-demand capacity (leave it out, or set type to spot)`},
		{"a way back without a fallback", group(`"market": {"type": "spot", "return_after": "1m"}`),
			`groups.default.web.market.return_after: c:6:105: means nothing without fallback (leave it out, or set fallback)`},
		{"a limit of reclaims without a fallback", group(`"market": {"type": "spot", "fallback_when": {"reclaims": 5, "window": "30m"}}`),
			`groups.default.web.market.fallback_when: c:6:106: means nothing without fallback (leave it out, or set fallback to on-demand)`},
		{"a base of on-demand capacity", group(`"market": {"on_demand_base": 1}`),
			`groups.default.web.market.on_demand_base: c:6:91: means nothing on on-demand capacity (leave it out, or set type to spot)`},
		{"a cordon for maintenance", group(`"on_maintenance": "cordon"`),
			`groups.default.web.on_maintenance: c:6:80: unknown word "cordon" (valid here: ignore, replace)`},
		{"a spread by rack", group(`"spread": {"by": "rack", "max_share": "50%"}`),
			`groups.default.web.spread.by: c:6:79: unknown word "rack" (valid here: pool, type, zone, subnet, market, host)`},
		{"a spread over markets on demand", group(`"spread": {"by": "market", "max_share": "60%"}`),
			`groups.default.web.spread.by: c:6:79: market means nothing on on-demand capacity (set market.type to spot, or use pool or zone)`},
		{"a spread over markets beside a base", group(`"market": {"type": "spot", "on_demand_base": 1}, "spread": {"by": "market", "max_share": "60%"}`),
			`groups.default.web.spread.by: c:6:128: market says the same as market.on_demand_base (keep one of the two)`},
		{"a spread without a share", group(`"spread": {"by": "zone"}`),
			`groups.default.web.spread.max_share: c:6:72: is missing (add it)`},
		{"a share of none", group(`"spread": {"max_share": 0}`),
			`groups.default.web.spread.max_share: c:6:86: is 0 (use a share such as 34%, or leave spread out)`},
		{"patience without a fallback", group(`"market": {"type": "spot", "fallback_after": "1m"}`),
			`groups.default.web.market.fallback_after: c:6:107: means nothing without fallback (leave it out, or set fallback)`},
		{"ages in the wrong order", shard(`"expiry": {"forced_age": "1d", "eligible_age": "2d"}`),
			`shard.expiry.eligible_age: c:4:48: is longer than forced_age (make it the smaller of the two)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := config.Parse("c", []byte(c.text), kinds...)
			require.EqualError(t, err, c.want)
			require.ErrorIs(t, err, nstance.Invalid)
		})
	}
}

func TestErrorsAreStructured(t *testing.T) {
	_, err := config.Parse("c", []byte(group(`"siez": 3`)), kinds...)
	e, ok := errors.AsType[*nstance.Error](err)
	require.True(t, ok)
	require.Equal(t, &nstance.Error{
		Code: nstance.Invalid, Field: "groups.default.web.siez",
		Msg: `c:6:62: unknown setting "siez"`, Remedy: `did you mean "size"?`,
	}, e)
}

func TestSeveralErrorsInFileOrder(t *testing.T) {
	_, err := config.Parse("c", []byte(with(`"spot": {}`, `"web": {"arch": "amd64"}`, `"web": {"size": "x"}`)), kinds...)
	require.EqualError(t, err, strings.Join([]string{
		`shard.spot: c:4:1: is not supported by this version (remove it)`,
		`templates.web.kind: c:5:22: is missing (add it)`,
		`groups.default.web.template: c:6:31: is missing (add it)`,
		`groups.default.web.size: c:6:40: must be a number, not a string (write a number)`,
	}, "\n"))
}

func TestErrorsAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "\"x%d\": {},\n", i)
	}
	_, err := config.Parse("c", []byte(with("", b.String(), "")), kinds...)
	errs := err.(interface{ Unwrap() []error }).Unwrap()
	require.Len(t, errs, 21)
	require.EqualError(t, errs[20], "c: 1980 more errors")
}

func TestDurations(t *testing.T) {
	for in, want := range map[string]string{
		`"90s"`: "1m30s", `"1d12h"`: "36h0m0s", `"7d"`: "168h0m0s", `"0"`: "0s", `"0d"`: "0s", `"1h30m"`: "1h30m0s",
		`"1.5h"`: "1h30m0s", `"3650d"`: "87600h0m0s",
		`"3651d"`: "is longer than 3650d", `"99999999h"`: "is not a duration", `"2562047h"`: "is longer than 3650d",
		`"-1s"`: "is negative", `"1d-1s"`: "is not a duration", `"+1s"`: "is not a duration", `"1h2d"`: "is not a duration",
		`"d"`: "is not a duration", `"1"`: "is not a duration", `""`: "is not a duration", `"1d1d"`: "is not a duration",
		`"1.5d"`: "is not a duration", `" 1s"`: "is not a duration",
	} {
		t.Run(in, func(t *testing.T) {
			c, err := config.Parse("c", []byte(group(`"drain_timeout": `+in)), kinds...)
			if err != nil {
				require.ErrorContains(t, err, in+" "+want)
				return
			}
			require.Equal(t, want, c.Groups()[0].DrainTimeout.String())
		})
	}
}

func TestCounts(t *testing.T) {
	for in, want := range map[string]nstance.Count{
		`0`: {}, `3`: {N: 3}, `"0%"`: {Percent: true}, `"100%"`: {N: 100, Percent: true},
	} {
		t.Run(in, func(t *testing.T) {
			c, err := config.Parse("c", []byte(group(`"rollout": {"max_surge": `+in+`}`)), kinds...)
			require.NoError(t, err)
			require.Equal(t, want, c.Groups()[0].Rollout.MaxSurge)
		})
	}
	for _, in := range []string{`-1`, `1.5`, `"3"`, `"-1%"`, `"101%"`, `"%"`, `"1.5%"`, `1e9`} {
		t.Run(in, func(t *testing.T) {
			_, err := config.Parse("c", []byte(group(`"rollout": {"max_surge": `+in+`}`)), kinds...)
			require.ErrorContains(t, err, "is neither")
		})
	}
}

func TestShownURL(t *testing.T) {
	for text, want := range map[string]string{
		"https://host/path?sig=1#x":            "https://host/path",
		"https://user:secret@host:8443/p/@q?s": "https://host:8443/p/@q",
		"https://host":                         "https://host",
		"https://user:se/cret@host/x?sig=1":    "https:...",
		"https://host/%zz?sig=1":               "https:...",
		"%zz?sig=1":                            "%zz:...",
		"htps:/host?sig=1":                     "htps:/host",
		"storage:userdata/web":                 "storage:userdata/web",
		"":                                     "",
		"?sig=1":                               "",
		"//user@host?s":                        "//host",
	} {
		require.Equal(t, want, config.ShownURL(text), text)
	}
}
