package files

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

	// For user data only: arguments end up in logs and consoles.
	Nonce         string
	BootstrapData string // of the request for the group or instance
}
