package config

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/filelimit"
	"github.com/nstance-go/nstance/internal/nearest"
	"github.com/nstance-go/nstance/internal/validate"
)

// objectPrefix begins the keys of objects that may become files: everything
// else in storage is the servers' own.
const objectPrefix = "files/"

// A File is one file of a template, as written.
type File struct {
	Kind        string                  `name:"kind" required:"true" enum:"certificate|secret|storage|env|json|string" doc:"where the content comes from"`
	Mode        FileMode                `name:"mode" absent:"the agent's, 0640" doc:"permission bits in octal and in quotes, such as \"0600\"; closed to strangers, not executable"`
	Content     *string                 `name:"content" empty:"true" absent:"required for kind string" doc:"kind string: the template"`
	Env         map[string]string       `name:"env" absent:"required for kind env" doc:"kind env: templates of the values, by variable; quoted so that a shell and systemd read them alike"`
	JSON        json.RawMessage         `name:"json" rendered:"files" absent:"required for kind json" doc:"kind json: an object, the strings within are templates"` // canonical JSON or nil
	Secret      SecretName              `name:"secret" absent:"required for kind secret" doc:"kind secret: its name, as in nstance-admin secret put"`
	Field       string                  `name:"field" absent:"all of it" doc:"kind secret: the one field of the secret, a JSON object, that becomes the file"`
	Object      ObjectKey               `name:"object" absent:"required for kind storage" doc:"kind storage: key of an object in the shard's storage, below files/; it is not rendered"`
	Certificate CertificateName         `name:"certificate" absent:"required for kind certificate" doc:"kind certificate: its name in certificates"`
	Part        nstance.CertificatePart `name:"part" default:"chain" enum:"cert|chain|ca" doc:"kind certificate: the certificate, with its issuer's, or the issuer's alone, to trust others by"`
}

// A Certificate is what is certified for a key that a machine makes.
type Certificate struct {
	CommonName string        `name:"common_name" default:"{{.Instance.ID}}" rendered:"true" doc:"template of the holder's name"`
	DNSNames   []string      `name:"dns_names" doc:"templates of the DNS names in it"`
	DNSSuffix  DNSSuffix     `name:"dns_suffix" absent:"names that machines claim are refused" doc:"the domain of all names that use .Instance.Hostname, .Instance.FQDN or a variable that was set through the API, because a machine chooses its own hostname, and a tenant its variables"`
	Addresses  bool          `name:"addresses" default:"true" doc:"the machine's IP addresses are in it, as the provider reports them"`
	Usages     []string      `name:"usages" absent:"both" doc:"its usages: server, client"`
	Validity   time.Duration `name:"validity" default:"24h" min:"10m" max:"825d" doc:"how long it is valid; it is issued again after two thirds of that"`
	Key        KeyName       `name:"key" absent:"the certificate's name" doc:"name of the key, which the machine creates itself; the file NAME.pem in NSTANCE_KEYS_DIR"`
}

// A DNSSuffix is a domain, without a leading dot.
type DNSSuffix string

// Validate returns nil or an Invalid error that names field.
func (s DNSSuffix) Validate(field string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyz0123456789-"
	for label := range strings.SplitSeq(string(s), ".") {
		if label == "" || len(label) > 63 || len(s) > 200 || strings.Trim(label, allowed) != "" {
			return nstance.FieldError(field, "write a domain in lower case, such as web.example.com", "%q is not a domain", clip.Quote(string(s)))
		}
	}
	return nil
}

// A FilePath is where a file goes, within NSTANCE_RECV_DIR.
type FilePath string

// Validate returns nil or an Invalid error that names field.
func (p FilePath) Validate(field string) error { return validate.FilePath(field, string(p)) }

// A FileMode is permission bits in octal; empty is the agent's default.
type FileMode string

// Validate returns nil or an Invalid error that names field.
func (m FileMode) Validate(field string) error {
	bits, err := strconv.ParseUint(string(m), 8, 32)
	if err != nil {
		return nstance.FieldError(field, `write it in octal and in quotes, such as "0640"`, "%q is not a file mode", clip.Quote(string(m)))
	}
	return validate.FileMode(field, uint32(bits))
}

func (m FileMode) bits() uint32 {
	bits, err := strconv.ParseUint(string(m), 8, 32)
	if err != nil {
		return 0 // absent: all else has been refused
	}
	return uint32(bits)
}

// CertificateName names a certificate.
type CertificateName string

// Validate returns nil or an Invalid error that names field.
func (n CertificateName) Validate(field string) error { return validate.Name(field, string(n)) }

// KeyName names a key on machines; empty is its certificate's name.
type KeyName string

// Validate returns nil or an Invalid error that names field.
func (n KeyName) Validate(field string) error { return validate.Name(field, string(n)) }

// StoreSecrets is the source of secrets that every server has: the cluster's
// storage.
const StoreSecrets SecretSource = "store:"

// secretSchemes are those of the sources that there are.
var secretSchemes = []string{"store", "env", "file", "awssecretsmanager", "awsparamstore", "gcpsecretmanager", "azurekeyvault"}

// SecretSource is the URL of a source of secrets. Opening it checks the
// rest of it.
type SecretSource string

// Validate returns nil or an Invalid error that names field and not the URL.
func (s SecretSource) Validate(field string) error {
	scheme, rest, ok := strings.Cut(string(s), ":")
	switch {
	case !ok || !slices.Contains(secretSchemes, scheme):
		return nstance.FieldError(field, "use a URL with "+strings.Join(secretSchemes, ", "), "names no source of secrets")
	case scheme == "store" && rest != "" || scheme != "store" && !strings.HasPrefix(rest, "//"):
		return nstance.FieldError(field, "write store: or scheme://...", "is not a URL of scheme %s", scheme)
	}
	return nil
}

// secrets returns the names of the secrets in t's files.
func (t Template) secrets() (out []string) {
	for _, f := range t.Files {
		if nstance.FileKind(f.Kind) == nstance.FileSecret && !slices.Contains(out, string(f.Secret)) {
			out = append(out, string(f.Secret))
		}
	}
	return out
}

// TrackedSecrets returns the names of the secrets whose contents count as a
// change of machines, sorted.
func (c *Config) TrackedSecrets() (out []string) {
	for _, t := range c.Templates {
		if slices.Contains(t.Track, nstance.TrackSecrets) {
			out = append(out, t.secrets()...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// SecretName names a secret.
type SecretName string

// Validate returns nil or an Invalid error that names field.
func (n SecretName) Validate(field string) error {
	return validate.SecretName(field, string(n))
}

// An ObjectKey names an object that becomes a file.
type ObjectKey string

// Validate returns nil or an Invalid error that names field.
func (k ObjectKey) Validate(field string) error {
	rest, ok := strings.CutPrefix(string(k), objectPrefix)
	if !ok {
		return nstance.FieldError(field, "put the object below "+objectPrefix+" and write "+objectPrefix+"...", "%q is not below %s", clip.Quote(string(k)), objectPrefix)
	}
	if validate.FilePath(field, rest) != nil || strings.ContainsAny(rest, "+@:") || strings.Contains("/"+rest, "/.") {
		return nstance.FieldError(field, "use segments of A-Z, a-z, 0-9, '.', '_' and '-', joined by single slashes, none beginning with a dot", "%q is not the key of an object", clip.Quote(string(k)))
	}
	return nil
}

// A Command is a program and its arguments, run without a shell.
type Command []string

// files checks what a template says of files.
func (d *decoder) files(c *Config, path string, t Template) {
	at := join(path, "files")
	if len(t.Files) > filelimit.Files {
		d.wrong(at, "put some of them together", "has %d files, more than %d", len(t.Files), filelimit.Files)
	}
	keys := map[KeyName]CertificateName{}
	for name, f := range t.Files {
		d.file(c, join(at, string(name)), f)
		if cert, ok := c.Certificates[f.Certificate]; ok && f.Part != nstance.PartCA {
			key := cert.key(f.Certificate)
			if other, used := keys[key]; used && other != f.Certificate {
				d.wrong(join(join(at, string(name)), "certificate"), "give each certificate a key of its own", "certificates %q and %q have the same key", min(other, f.Certificate), max(other, f.Certificate))
			}
			keys[key] = f.Certificate
		}
		for dir := range t.Files {
			if strings.HasPrefix(string(name), string(dir)+"/") {
				d.wrong(join(at, string(name)), "rename one of them", "lies below the file %q", dir)
			}
		}
	}
	if len(keys) > filelimit.Certificates {
		d.wrong(at, "use fewer", "%d certificates are more than %d", len(keys), filelimit.Certificates)
	}
	if len(t.PostApply) > 0 && len(t.Files) == 0 {
		d.wrong(join(path, "post_apply"), "remove it, or add files", "means nothing without files")
	}
}

// file checks one file: what its kind needs is there, and nothing else.
func (d *decoder) file(c *Config, path string, f File) {
	for _, s := range []struct {
		name, kind string
		given      bool
		required   bool
	}{
		{"content", "string", f.Content != nil, true},
		{"env", "env", f.Env != nil, true},
		{"json", "json", d.given(join(path, "json")), true},
		{"secret", "secret", f.Secret != "", true},
		{"field", "secret", f.Field != "", false},
		{"object", "storage", f.Object != "", true},
		{"certificate", "certificate", f.Certificate != "", true},
		{"part", "certificate", d.given(join(path, "part")), false},
	} {
		switch {
		case s.given && s.kind != f.Kind:
			d.wrong(join(path, s.name), "remove it, or use kind "+s.kind, "means nothing for kind %s", f.Kind)
		case !s.given && s.required && s.kind == f.Kind:
			d.wrong(join(path, s.name), "add it", "is missing")
		}
	}
	if f.Content != nil {
		d.renderedAt(join(path, "content"), *f.Content)
	}
	for name, value := range f.Env {
		d.variable(join(join(path, "env"), name), name, value)
	}
	if _, ok := c.Certificates[f.Certificate]; f.Certificate != "" && !ok {
		names := slices.Sorted(maps.Keys(c.Certificates))
		d.wrong(join(path, "certificate"), nearest.Remedy(string(f.Certificate), plain(names)), "certificate %q is not defined", f.Certificate)
	}
}

func (d *decoder) variable(path, name, value string) {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"
	if strings.Trim(name, letters+"0123456789") != "" || !strings.Contains(letters, name[:1]) {
		d.wrong(path, "use letters, digits and _, no digit first", "%q is not the name of a variable", clip.Quote(name))
	}
	d.renderedAt(path, value)
}

// certificate checks what a certificate says.
func (d *decoder) certificate(path string, c Certificate) {
	d.certified(join(path, "common_name"), c.CommonName, c.DNSSuffix)
	for i, name := range c.DNSNames {
		d.certified(index(join(path, "dns_names"), i), name, c.DNSSuffix)
	}
	for i, use := range c.Usages {
		if words := []string{"server", "client"}; !slices.Contains(words, use) {
			d.wrong(index(join(path, "usages"), i), nearest.Remedy(use, words), "unknown word %q", clip.Quote(use))
		}
	}
}

// claimedName finds what a machine says of itself in a template. What hides from it is
// refused when the certificate is to be issued.
var claimedName = regexp.MustCompile(`\{\{[^}]*\.(Hostname|FQDN)\b`)

// certified checks the template of a name in a certificate.
func (d *decoder) certified(path, text string, suffix DNSSuffix) {
	if m := claimedName.FindStringSubmatch(text); m != nil && suffix == "" {
		d.wrong(path, "use .Instance.ID, or set dns_suffix to the domain that such names must be in", "uses .Instance.%s, which the machine claims: it could have a certificate for any name", m[1])
	}
	d.renderedAt(path, text)
}

func (d *decoder) renderedAt(path, text string) {
	if err := renderable(text, seenByFiles); err != nil {
		d.adopt(path, d.at[path], err)
	}
}

func (d *decoder) given(path string) bool { _, ok := d.at[path]; return ok }

// definitions returns the template's files, and the certificates that they name.
func (t Template) definitions(c *Config) (map[string]nstance.File, map[string]nstance.Certificate) {
	if len(t.Files) == 0 {
		return nil, nil
	}
	files := make(map[string]nstance.File, len(t.Files))
	var certs map[string]nstance.Certificate
	for path, f := range t.Files {
		files[string(path)] = f.definition()
		if f.Certificate == "" {
			continue
		}
		if certs == nil {
			certs = map[string]nstance.Certificate{}
		}
		certs[string(f.Certificate)] = c.Certificates[f.Certificate].definition(f.Certificate)
	}
	return files, certs
}

func (f File) definition() nstance.File {
	out := nstance.File{
		Kind: nstance.FileKind(f.Kind), Mode: f.Mode.bits(), Env: f.Env, JSON: f.JSON, Secret: string(f.Secret), Field: f.Field,
		Object: string(f.Object), Certificate: string(f.Certificate),
	}
	if f.Content != nil {
		out.Content = *f.Content
	}
	if f.Certificate != "" {
		out.Part = f.Part
	}
	return out
}

func (c Certificate) definition(name CertificateName) nstance.Certificate {
	both := len(c.Usages) == 0
	return nstance.Certificate{
		CommonName: c.CommonName, DNSNames: c.DNSNames, DNSSuffix: string(c.DNSSuffix), Addresses: c.Addresses, Validity: c.Validity, Key: string(c.key(name)),
		Server: both || slices.Contains(c.Usages, "server"), Client: both || slices.Contains(c.Usages, "client"),
	}
}

func (c Certificate) key(name CertificateName) KeyName {
	if c.Key == "" {
		return KeyName(name)
	}
	return c.Key
}

// cloneFiles copies what the owner of a definition could otherwise change.
func cloneFiles(d *nstance.Definition) {
	d.Files, d.Certificates, d.PostApply = maps.Clone(d.Files), maps.Clone(d.Certificates), slices.Clone(d.PostApply)
	for path, f := range d.Files {
		f.Env, f.JSON = maps.Clone(f.Env), slices.Clone(f.JSON)
		d.Files[path] = f
	}
	for name, c := range d.Certificates {
		c.DNSNames = slices.Clone(c.DNSNames)
		d.Certificates[name] = c
	}
}
