// Command image makes container images of one program each, without a daemon and on no
// other image: each has the program and the authorities of Mozilla's list, which a module
// brings. The same programs give the same bytes.
//
//	image build -to FILE [-created SECONDS] PLATFORM=PROGRAM...
//	             an OCI archive with an image for each platform, such as linux/arm64
//	image docker -from FILE -to FILE -platform PLATFORM NAME:TAG
//	             one of its images, as `docker load` and `podman load` take it
//	image unpack -from FILE -to FOLDER -platform PLATFORM
//	             the files of one of its images
//	image digest -from FILE -platform PLATFORM
//	             of one of its images
//	image push -from FILE NAME:TAG
//	             to a registry, with the credentials of `docker login`; prints the digest
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// flags are those of all commands.
type flags struct {
	from, to, platform string
	created            int64
	args               []string
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("name a command: build, docker, unpack, digest or push")
	}
	var o flags
	f := flag.NewFlagSet("image "+args[0], flag.ContinueOnError)
	f.StringVar(&o.from, "from", "", "OCI archive to read")
	f.StringVar(&o.to, "to", "", "file or folder to write")
	f.StringVar(&o.platform, "platform", "linux/amd64", "platform of the image to select")
	f.Int64Var(&o.created, "created", 0, "time of the image and its files, in seconds since 1970")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	o.args = f.Args()
	switch args[0] {
	case "build":
		return build(o)
	case "docker":
		return docker(o)
	case "unpack":
		return unpack(o)
	case "digest":
		return digest(o, out)
	case "push":
		return push(o, out)
	}
	return fmt.Errorf("%q is no command: use build, docker, unpack, digest or push", args[0])
}

func build(o flags) error {
	if o.to == "" || len(o.args) == 0 {
		return errors.New("build: name -to FILE and at least one PLATFORM=PROGRAM")
	}
	index, err := programs(o.args, time.Unix(o.created, 0).UTC())
	if err != nil {
		return err
	}
	return writeArchive(o.to, index)
}

func docker(o flags) error {
	if o.from == "" || o.to == "" || len(o.args) != 1 {
		return errors.New("docker: name -from FILE, -to FILE and one NAME:TAG")
	}
	tag, err := name.NewTag(o.args[0])
	if err != nil {
		return err
	}
	return withImage(o, func(img platformImage) error { return tarball.WriteToFile(o.to, tag, img.Image) })
}

func unpack(o flags) error {
	if o.from == "" || o.to == "" || len(o.args) != 0 {
		return errors.New("unpack: name -from FILE and -to FOLDER")
	}
	return withImage(o, func(img platformImage) error { return extract(img.Image, o.to) })
}

func digest(o flags, out io.Writer) error {
	if o.from == "" || len(o.args) != 0 {
		return errors.New("digest: name -from FILE")
	}
	return withImage(o, func(img platformImage) error {
		hash, err := img.Digest()
		if err == nil {
			fmt.Fprintln(out, hash)
		}
		return err
	})
}

func push(o flags, out io.Writer) error {
	if o.from == "" || len(o.args) != 1 {
		return errors.New("push: name -from FILE and one NAME:TAG")
	}
	tag, err := name.NewTag(o.args[0])
	if err != nil {
		return err
	}
	index, done, err := openArchive(o.from)
	if err != nil {
		return err
	}
	defer done()
	if err := remote.WriteIndex(tag, index, remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, tag.Context().Digest(digest.String()))
	return nil
}
