package files

import (
	"encoding/base64"
	"encoding/json"
	"text/template"
)

// Seen is what templates of files see.
type Seen struct {
	Instance Instance
	Cluster  Cluster
	Server   Server
	Provider Provider
	Vars     map[string]string
	Image    string
}

// Boot is what templates of user data and of a provider's arguments see, before
// there is a machine: of its Instance, FQDN and addresses are empty, and Hostname
// is what the machine is to be called.
type Boot struct {
	Seen
	Nonce string // for user data only: arguments end up in logs and consoles
}

// Functions are those that templates may use beside the built-in ones.
func Functions() template.FuncMap {
	return template.FuncMap{
		"json": func(v any) (string, error) {
			b, err := json.Marshal(v)
			return string(b), err
		},
		"base64": func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
	}
}
