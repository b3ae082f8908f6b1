package agent

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/rules"
)

// fileOwner names the instance that everything in an identity directory belongs to, but
// for what user data wrote. It is the first file there that the agent writes, and the last
// one that it sets aside.
const fileOwner = "instance_id"

// prefixAside begins the names of folders with what belongs to other instances. The ID
// follows.
const prefixAside = "of-"

// ownedFiles are set aside in this order, with the pairs.
var ownedFiles = []string{
	linkCurrent, fileKey, fileCert, fileRoots, fileServer, fileConfigHash, fileUsedNonce, fileNotices, fileNotices + ".damaged", fileOwner,
}

// A foreignIdentity is an identity that was found on this machine and belongs to another
// instance: the machine was made from an image of an enrolled one.
type foreignIdentity struct {
	owner nstance.InstanceID
	aside string // the folder that it was moved to
}

func (f *foreignIdentity) String() string {
	return fmt.Sprintf("an identity of instance %s was found and moved to %s: this machine was made from an image of an enrolled one", f.owner, f.aside)
}

// unknownOwner is in the place of an instance ID where nothing names one.
const unknownOwner = nstance.InstanceID("unknown")

// dirsOfFiles are the directories beside the identity whose content belongs to one instance.
type dirsOfFiles struct{ keys, recv string }

// claim makes the directory one of instance id, before anything in it is used: what
// belongs to another instance is set aside, and returned; nil: nothing was. So are
// the files of the other instance and the keys that certificates among them are for, and a
// key whose owner is not known. It is repeated after a crash.
// If it fails nothing there may be used.
func (v identityDir) claim(id nstance.InstanceID, files dirsOfFiles) (*foreignIdentity, error) {
	owner, err := v.owner(id)
	if err != nil || owner == id {
		return nil, err
	}
	var found *foreignIdentity
	if owner == "" {
		found, err = v.setKeysAside()
	} else {
		found, err = v.setAside(owner, files)
	}
	if err != nil {
		return nil, nstance.Errorf(nstance.Internal, "the identity of another instance, %s, cannot be set aside: remove it from %s: %w", cmp.Or(owner, unknownOwner), v.dir, err)
	}
	if _, err := os.Stat(v.dir); errors.Is(fileError(err), nstance.NotFound) {
		return found, nil // user data makes it
	}
	return found, v.write(v.path(fileOwner), []byte(string(id)+"\n"))
}

// owner returns the instance that the directory belongs to: another than id, if anything
// says so; empty: nothing says any.
func (v identityDir) owner(id nstance.InstanceID) (nstance.InstanceID, error) {
	var owner nstance.InstanceID
	data, err := v.read(fileOwner)
	switch {
	case err == nil:
		if named, err := nstance.ParseInstanceID(strings.TrimSpace(string(data))); err == nil {
			owner = named
		}
	case !errors.Is(err, nstance.NotFound) && !errors.Is(err, nstance.Invalid):
		return "", err
	}
	if owner != "" && owner != id {
		return owner, nil
	}
	n, err := v.version()
	if err != nil {
		return owner, nil //nolint:nilerr // then there is no identity to use, and load says why
	}
	for _, pair := range []int{n + 1, n} { // as load chooses one
		chain, err := pki.LoadCertificates(v.path(versionDir(pair), fileCert))
		if err != nil || len(chain) == 0 {
			continue
		}
		named, err := pki.IdentityOf(chain[0])
		if err != nil {
			continue
		}
		if subject, err := nstance.ParseInstanceID(named.Subject); err == nil {
			return subject, nil
		}
	}
	return owner, nil
}

func (v identityDir) foreign(owner nstance.InstanceID) *foreignIdentity {
	return &foreignIdentity{owner: owner, aside: v.path(prefixAside + string(owner))}
}

// setKeysAside moves keys for certificates that were never received: an image may have been
// made before. What is returned is nil if there was none.
func (v identityDir) setKeysAside() (*foreignIdentity, error) {
	keys, err := filepath.Glob(v.path("v*", fileKey))
	if len(keys) == 0 {
		return nil, err
	}
	found := v.foreign(unknownOwner)
	for _, key := range keys {
		err = errors.Join(err, moveInto(found.aside, key))
	}
	return found, err
}

// setAside moves all that is owned into a folder of the same directory.
func (v identityDir) setAside(owner nstance.InstanceID, files dirsOfFiles) (*foreignIdentity, error) {
	found, name := v.foreign(owner), prefixAside+string(owner)
	err := v.write(v.path(fileOwner), []byte(string(owner)+"\n")) // for the case of a crash
	if err != nil {
		return found, err
	}
	keys, err := filepath.Glob(filepath.Join(files.keys, "*.pem"))
	for _, key := range keys {
		err = errors.Join(err, moveInto(filepath.Join(files.keys, name), key))
	}
	// The agent's links to the files go when it opens the directory.
	err = errors.Join(err, move(filepath.Join(files.recv, rules.ReservedFileDir), filepath.Join(files.recv, name)))
	pairs, globErr := filepath.Glob(v.path("v*"))
	if err = errors.Join(err, globErr); err != nil {
		return found, err
	}
	paths := append([]string{v.path(ownedFiles[0])}, pairs...)
	for _, file := range ownedFiles[1:] {
		paths = append(paths, v.path(file))
	}
	for _, path := range paths {
		if err := v.next(); err != nil {
			return found, err
		}
		if err := moveInto(found.aside, path); err != nil {
			return found, err
		}
	}
	return found, nil
}

// moveInto moves a file into a folder, which it makes if there is something to move.
func moveInto(dir, path string) error {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return move(path, filepath.Join(dir, filepath.Base(path)))
}

// move replaces what is at to. There may be nothing to move.
func move(from, to string) error {
	if _, err := os.Lstat(from); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.Rename(from, to)
}

// claimIdentity claims the identity directory for this instance.
func (a *Agent) claimIdentity() error {
	found, err := a.certs.identityDir.claim(a.o.InstanceID, dirsOfFiles{keys: a.o.KeysDir, recv: a.o.RecvDir})
	if found == nil {
		return err
	}
	a.o.Log.Error("identity of another instance set aside: this machine was made from an image of an enrolled one. Registering with the nonce of this machine", "of", found.owner, "moved_to", found.aside)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.foreign = found.String()
	return err
}
