package config

import (
	"errors"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/files"
	"github.com/nstance-go/nstance/internal/nearest"
	"github.com/nstance-go/nstance/internal/render"
	"github.com/nstance-go/nstance/internal/templates"
)

// What templates see of their kind.
var (
	seenByBoot  = reflect.TypeFor[files.Boot]()
	seenByFiles = reflect.TypeFor[files.Seen]()
)

// CheckUserData returns nil, or an Invalid error, for the text of a user data
// template that was fetched: what no machine could be made with.
func CheckUserData(field, text string) error {
	err := renderable(text, seenByBoot)
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		e.Field = field
	}
	return err
}

// renderable checks that text is a template, that it calls what there is, and
// that the fields which it names are among those of data. Variables are looked
// for where it is known whose they are.
func renderable(text string, data reflect.Type) error {
	if _, err := render.Parse(text); err != nil {
		wrong := strings.TrimPrefix(err.Error(), "template: text:")
		remedy := "see the documentation of Go's text/template"
		if _, name, ok := strings.Cut(wrong, "function "); ok {
			remedy = orEscape(nearest.Remedy(strings.TrimSuffix(strings.TrimPrefix(name, `"`), `" not defined`), render.Functions()))
		}
		if jinja.MatchString(text) {
			remedy = escape
		}
		return nstance.FieldError("", remedy, "template line %s", wrong)
	}
	refs, err := templates.References(text)
	if err != nil {
		return nstance.Errorf(nstance.Internal, "template: %w", err) // it was parsed before
	}
	for _, r := range refs {
		if err := checkPath(r, data); err != nil {
			return err
		}
	}
	return nil
}

// escape is what to do with braces that are not for this system, but for what reads the
// text on the machine.
const escape = "braces that another program is to read, such as cloud-init's Jinja, are escaped: write {{`{{ ds.meta_data.local_hostname }}`}}"

// jinja matches what cloud-init renders on the machine (cloud-init, "Instance metadata",
// using instance-data): its header, a block, or one of its variables.
var jinja = regexp.MustCompile(`(?m)^## template: ?jinja|\{%|\{\{-?\s*(ds|v1|_beta_keys|userdata|vendordata|sys_info|combined_cloud_config)\b`)

// orEscape adds to the remedy for an unknown word, unless it has the word that was meant,
// that the braces may be another program's.
func orEscape(remedy string) string {
	if strings.HasPrefix(remedy, "did you mean") {
		return remedy
	}
	return remedy + "; " + escape
}

// checkPath follows a path from the root of the data, as far as its fields are
// those of structs.
func checkPath(r templates.Reference, data reflect.Type) error {
	at := data
	for i, name := range r.Path {
		if _, method := at.MethodByName(name); at.Kind() != reflect.Struct && (method || at.Kind() == reflect.Map) {
			return nil
		}
		var names []string
		if at.Kind() == reflect.Struct {
			if f, ok := at.FieldByName(name); ok && !f.Anonymous {
				at = f.Type
				continue
			}
			for _, f := range reflect.VisibleFields(at) {
				if !f.Anonymous {
					names = append(names, f.Name)
				}
			}
		}
		return nstance.FieldError("", orEscape(nearest.Remedy(name, names)), "template line %s: there is no .%s", r.Place(), strings.Join(r.Path[:i+1], "."))
	}
	return nil
}

// sample is what templates are tried with.
func sample(def nstance.Definition, vars map[string]string) files.Boot {
	const pem = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
	if vars == nil {
		vars = map[string]string{}
	}
	image := def.Image
	if image == "" {
		image = "image-0123456789abcdef"
	}
	id := nstance.InstanceID(string(def.Kind) + "06bgm7733st2576nx5jht4ecjw")
	return files.Boot{Nonce: "e30.e30.c2lnbmF0dXJl", BootstrapData: "#cloud-config\n", Seen: files.Seen{
		Instance: files.Instance{
			ID: id, Kind: def.Kind, Arch: def.Arch, Type: "type", Hostname: string(id), FQDN: string(id) + ".example.com", IP4: "192.0.2.1", IP6: "2001:db8::1",
		},
		Cluster: files.Cluster{ID: "cluster", CACert: pem},
		Server:  files.Server{Shard: "shard", RegistrationAddr: "192.0.2.2:1", AgentAddr: "192.0.2.2:2", OperatorAddr: "192.0.2.2:3"},
		Vars:    vars, Image: image, Provider: files.Provider{Kind: "sim", Region: "region", Zone: "zone"},
	}}
}

// A trial renders the templates of groups with samples.
type trial struct {
	*decoder
	conf    *Config
	texts   *render.Renderer
	checked map[string]bool // specs that the provider has checked, by what differs between groups
}

// try renders what a group's machines would be made from and have. Only what no
// value can mend is wrong: a variable that the group has not, a template that is
// not there. A group without members may leave variables to requests.
func (r trial) try(at string, g nstance.Group) {
	boot := sample(g.Definition, g.Definition.Vars)
	from := join("templates", g.Template)
	var userData string
	rendered := true
	if text, err := g.Definition.UserData.Template(); err == nil { // else it is fetched, and checked then
		userData, rendered = r.text(at, join(join(from, "userdata"), "content"), text, boot, g)
	}
	seen := boot.Seen
	boot.Nonce, boot.BootstrapData = "", ""
	args, ok := r.within(at, join(from, "args"), decodeArgs(g.Definition.Args), boot, g)
	if rendered && ok {
		r.trySpecs(at, g, args, r.fitting([]byte(userData)))
	}
	for name, f := range g.Definition.Files {
		file := join(join(from, "files"), name)
		r.text(at, join(file, "content"), f.Content, seen, g)
		for key, value := range f.Env {
			r.text(at, join(join(file, "env"), key), value, seen, g)
		}
		r.within(at, join(file, "json"), decodeArgs(f.JSON), seen, g)
	}
	for name, cert := range g.Definition.Certificates {
		r.text(at, join(join("certificates", name), "common_name"), cert.CommonName, seen, g)
		for i, dns := range cert.DNSNames {
			r.text(at, index(join(join("certificates", name), "dns_names"), i), dns, seen, g)
		}
	}
}

// within renders every string within v. It reports whether all of them could be
// rendered.
func (r trial) within(at, path string, v any, data any, g nstance.Group) (any, bool) {
	whole := true
	out, _ := templates.MapStrings(path, v, func(path, text string) (string, error) {
		rendered, ok := r.text(at, path, text, data, g)
		whole = whole && ok
		return rendered, nil
	})
	return out, whole
}

// text renders one template, and reports whether that was possible.
func (r trial) text(at, path, text string, data any, g nstance.Group) (string, bool) {
	out, err := r.texts.Text(r.ctx, text, data)
	switch {
	case err == nil:
		return out, true
	case r.ctx.Err() != nil, errors.Is(err, render.ErrParse): // the decoder reports what cannot be parsed
		return "", false
	case errors.Is(err, render.ErrLimit), errors.Is(err, nstance.Unavailable):
		r.wrong(path, "make the template do less", "%v", err)
		return "", false
	case strings.Contains(err.Error(), "error calling"): // which another value may mend
		return "", false
	}
	wrong := strings.TrimPrefix(err.Error(), "template: text:")
	_, key, missing := strings.Cut(wrong, "map has no entry for key ")
	key = strings.Trim(key, `"`)
	switch {
	case missing && g.Size == 0:
	case missing:
		r.wrong(join(at, "vars"), nearest.Remedy(key, slices.Sorted(maps.Keys(g.Definition.Vars))), "there is no variable %q, which %s names", clip.Quote(key), path)
	default:
		r.wrong(path, "correct the template", "template line %s", wrong)
	}
	return "", false
}

// tryAll renders the templates of every group.
func (d *decoder) tryAll(c *Config) {
	r := trial{d, c, &render.Renderer{}, map[string]bool{}}
	used := map[string]bool{}
	for _, g := range c.groups {
		if d.ctx.Err() != nil {
			return
		}
		used[g.Template] = true
		r.try(groupPath(g.Key), g)
	}
	for _, name := range c.templateNames() {
		if !used[string(name)] && c.kind != nil { // groups may be made from it through the API
			g := c.sampleGroup(name)
			g.Size = 0
			r.try(join("templates", string(name)), g)
		}
	}
}
