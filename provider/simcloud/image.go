package simcloud

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

// An Image is an image for machines.
type Image struct {
	ID      string
	Owner   string
	Name    string
	Arch    nstance.Arch // empty: any
	Created time.Time
}

var _ nstance.ImageResolver = (*Cloud)(nil)

// images are those that machines can be made from.
type images struct {
	*core
	calls *calls
	list  []Image
}

// SetImages replaces the images. Creates with a removed one fail.
func (c *images) SetImages(images ...Image) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = slices.Clone(images)
}

// ResolveImage implements [nstance.ImageResolver]. Of equally new images it
// returns the last one of the list.
func (c *images) ResolveImage(ctx context.Context, q nstance.ImageQuery) (id string, err error) {
	return ask(ctx, c.calls, opResolveImage, "", func() (string, error) {
		var newest *Image
		for i := range c.list {
			if m := &c.list[i]; m.fits(q) && (newest == nil || !m.Created.Before(newest.Created)) {
				newest = m
			}
		}
		if newest == nil {
			return "", nstance.Errorf(nstance.NotFound, "no image %.64q of %.64q for %s", q.Name, q.Owner, q.Arch)
		}
		return newest.ID, nil
	})
}

func (m *Image) fits(q nstance.ImageQuery) bool {
	return (q.Owner == "" || q.Owner == m.Owner) && (q.Name == "" || like(q.Name, m.Name)) &&
		(q.Arch == "" || m.Arch == "" || q.Arch == m.Arch)
}

// like reports whether name fits a pattern in which * is any run of characters.
func like(pattern, name string) bool {
	first, rest, open := strings.Cut(pattern, "*")
	name, ok := strings.CutPrefix(name, first)
	if !ok || !open {
		return ok && name == ""
	}
	for i := range len(name) + 1 {
		if like(rest, name[i:]) {
			return true
		}
	}
	return false
}

// check fails when the cloud does not have the image. It needs the lock.
func (c *images) check(id string) error {
	known := func(m Image) bool { return m.ID == id }
	if id == "" || len(c.list) == 0 || slices.ContainsFunc(c.list, known) {
		return nil
	}
	return nstance.FieldError("image", "use one of SetImages", "no image %.64q", id)
}
