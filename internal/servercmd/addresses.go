package servercmd

import (
	"maps"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/server"
)

// addresses returns what the command line says of this server's own addresses.
func (r *running) addresses() (b, a server.Addresses, err error) {
	err = setAddresses[config.ListenAddr]("--bind", r.bind, map[string]*string{
		"http": &b.HTTP, "registration": &b.Registration, "operator": &b.Operator, "agent": &b.Agent, "peer": &b.Peer,
	})
	if err != nil {
		return b, a, err
	}
	err = setAddresses[config.DialAddr]("--advertise", r.advertise, map[string]*string{
		"registration": &a.Registration, "operator": &a.Operator, "agent": &a.Agent, "peer": &a.Peer,
	})
	if err == nil && strings.ContainsAny(r.host, " \t/@") {
		err = nstance.FieldError("--host", "write a name or an address without a port", "%.64q is neither", r.host)
	}
	return b, a, err
}

// setAddresses copies what a flag says to where it belongs.
func setAddresses[A interface {
	~string
	Validate(field string) error
}](flag string, said map[string]string, ports map[string]*string) error {
	for _, port := range slices.Sorted(maps.Keys(said)) {
		to, ok := ports[port]
		if !ok {
			return nstance.FieldError(flag, "use "+strings.Join(slices.Sorted(maps.Keys(ports)), ", "), "there is no port %.64q", port)
		}
		*to = said[port]
		if err := A(*to).Validate(flag + " " + port); err != nil {
			return err
		}
	}
	return nil
}
