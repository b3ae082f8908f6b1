package config

import (
	"encoding/json"
	"maps"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/nearest"
	"github.com/nstance-go/nstance/internal/validate"
)

// ImageName names an entry of images.
type ImageName string

// BalancerName names an entry of load_balancers.
type BalancerName string

// Validate returns nil or an Invalid error that names field.
func (n ImageName) Validate(field string) error { return validate.Name(field, string(n)) }

// Validate returns nil or an Invalid error that names field.
func (n BalancerName) Validate(field string) error { return validate.Name(field, string(n)) }

// An Image is what machines are made from: one that is known by its ID, or the
// newest that fits.
type Image struct {
	ID    string `name:"id" absent:"looked for" doc:"the provider's ID of the image"`
	Owner string `name:"owner" absent:"any account" doc:"account or project that publishes it, as the provider spells it"`
	Name  string `name:"name" absent:"any" doc:"its name; * matches any characters. The newest image with this owner and name and the template's arch is used; it is looked up when a server starts to lead and every image_refresh"`
}

// Query returns what to look for, for a template of that architecture; ok is
// false when there is nothing to look for.
func (i Image) Query(arch nstance.Arch) (q nstance.ImageQuery, ok bool) {
	return nstance.ImageQuery{Owner: i.Owner, Name: i.Name, Arch: arch}, i.ID == ""
}

// A LoadBalancer is what machines join to be sent traffic.
type LoadBalancer struct {
	ID   string          `name:"id" required:"true" doc:"the provider's ID of the load balancer, target group or backend"`
	Args json.RawMessage `name:"args" doc:"further arguments of the provider, which checks them itself"` // canonical JSON or nil
}

// Balancers returns the load balancers that groups may name, sorted by name.
func (c *Config) Balancers() []nstance.LoadBalancer {
	var out []nstance.LoadBalancer
	for _, name := range slices.Sorted(maps.Keys(c.LoadBalancers)) {
		lb := c.LoadBalancers[name]
		out = append(out, nstance.LoadBalancer{Name: string(name), ID: lb.ID, Args: slices.Clone(lb.Args)})
	}
	return out
}

// Image returns the image that a template names; ok is false if it names none.
func (c *Config) Image(template TemplateName) (name ImageName, image Image, ok bool) {
	name = c.Templates[template].Image
	image, ok = c.Images[name]
	return name, image, ok
}

// A Digest is a SHA-256 in hexadecimal digits.
type Digest string

// Validate returns nil or an Invalid error that names field.
func (s Digest) Validate(field string) error {
	if len(s) != 64 || strings.Trim(string(s), "0123456789abcdef") != "" {
		return nstance.FieldError(field, "write what sha256sum prints: 64 digits, lower case", "%q is no SHA-256", clip.Quote(string(s)))
	}
	return nil
}

// UserDataPrefix begins the storage keys that user data may be read from.
const UserDataPrefix = "userdata/"

// UserDataURL takes the address of user data apart: http, https, or
// storage:userdata/... for an object of the shard's own store. It returns nil
// and an Invalid error if it is none of these.
func UserDataURL(text string) (*url.URL, error) {
	const remedy = "write https://host/path, http://host/path or storage:" + UserDataPrefix + "name"
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, nstance.FieldError("content", remedy, "%q is no URL", clip.Quote(ShownURL(text)))
	case u.Scheme == "storage":
		if key := u.Opaque; !strings.HasPrefix(key, UserDataPrefix) || path.Clean(key) != key || u.RawQuery != "" || u.Fragment != "" {
			return nil, nstance.FieldError("content", remedy, "%q names no object below %s", clip.Quote(ShownURL(text)), UserDataPrefix)
		}
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
		return nil, nstance.FieldError("content", remedy, "%q is no address that user data can be fetched from", clip.Quote(ShownURL(text)))
	case u.User != nil:
		return nil, nstance.FieldError("content", "leave it out: the address is stored and shown", "holds a user name or password")
	case u.Fragment != "":
		return nil, nstance.FieldError("content", remedy, "holds a #fragment, which no server is sent")
	}
	return u, nil
}

// UserDataPrefixes returns userdata_networks.
func (s *Shard) UserDataPrefixes() (out []netip.Prefix) {
	for _, text := range s.UserDataNetworks {
		if p, err := netip.ParsePrefix(text); err == nil { // which was checked
			out = append(out, p)
		}
	}
	return out
}

// ShownURL returns an address, or what was meant to be one, without what may be
// secret in it: user and password, and the query, which may be a signature.
func ShownURL(text string) string {
	u, err := url.Parse(text)
	if err != nil { // who knows where its parts are
		return text[:strings.IndexAny(text+":", ":/?#@")] + ":..."
	}
	u.User, u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = nil, "", false, "", ""
	return u.String()
}

func (d *decoder) image(c *Config, at string, i Image) {
	switch {
	case i.ID != "" && i.Owner+i.Name != "":
		d.wrong(join(at, "id"), "keep one of them", "is given beside owner or name")
	case i.ID == "" && i.Name == "":
		d.wrong(join(at, "name"), "name it, or give its id", "is missing")
	case i.ID == "" && c.kind != nil && !c.kind.Images:
		d.wrong(join(at, "name"), "give its id", "provider %s cannot look for images", c.kind.Name)
	}
}

func (d *decoder) balancer(c *Config, at string, lb LoadBalancer) {
	switch {
	case c.kind == nil:
	case !c.kind.Balancers:
		d.wrong(at, "remove it", "provider %s has no load balancers", c.kind.Name)
	default:
		d.fromProvider(c.kind.CheckBalancer(lb.Args), func(field string) string { return at + "." + field })
	}
}

func (d *decoder) provisioning(c *Config, at string, t Template) {
	if _, ok := c.Images[t.Image]; t.Image != "" && !ok {
		d.wrong(join(at, "image"), nearest.Remedy(string(t.Image), plain(slices.Sorted(maps.Keys(c.Images)))), "image %q is not in images", t.Image)
	}
	for i, word := range t.Track {
		switch {
		case word == nstance.TrackImage && t.Image == "":
			d.wrong(index(join(at, "track"), i), "name an image, or remove it", "the template names no image")
		case word == nstance.TrackUserData && (t.UserData == nil || t.UserData.Source != nstance.SourceURL):
			d.wrong(index(join(at, "track"), i), "remove it", "user data that is not fetched is tracked anyway")
		}
	}
	if i := slices.Index(t.Track, nstance.TrackSecrets); i >= 0 && len(t.secrets()) == 0 {
		d.wrong(index(join(at, "track"), i), "remove it", "the template has no file of kind secret")
	}
	if t.UserData != nil {
		d.userData(join(at, "userdata"), t.UserData)
	}
}

// userData checks what can be checked without fetching anything.
func (d *decoder) userData(at string, u *UserData) {
	content := join(at, "content")
	if u.Source == nstance.SourceURL {
		_, err := UserDataURL(u.Content)
		d.adopt(content, d.at[content], err)
		return
	}
	if u.Encoding == "gzip" {
		d.wrong(join(at, "encoding"), "use base64+gzip", "gzip cannot be written into this file as it is")
		return
	}
	if u.SHA256 != "" {
		d.wrong(join(at, "sha256"), "remove it", "means nothing for content that is not fetched")
	}
	text, err := u.definition().Template()
	if err == nil {
		err = renderable(text, seenByBoot)
	}
	d.adopt(content, d.at[content], err)
}

func (u *UserData) definition() nstance.UserData {
	return nstance.UserData{Source: u.Source, Encoding: u.Encoding, Content: u.Content, SHA256: string(u.SHA256)}
}

func (d *decoder) balancers(c *Config, at string, names []string) {
	for i, name := range names {
		if _, ok := c.LoadBalancers[BalancerName(name)]; !ok {
			d.wrong(index(join(at, "load_balancers"), i), nearest.Remedy(name, plain(slices.Sorted(maps.Keys(c.LoadBalancers)))), "load balancer %q is not in load_balancers", clip.Quote(name))
		}
	}
}
