package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// epoch is the time of every file, and of the images, so that builds are reproducible.
var epoch = time.Unix(0, 0).UTC()

// archive writes a directory as a tar archive: sorted names, owner root, one time.
func archive(to io.Writer, dir string) error {
	// The directory is an entry too, of an image its root, and often a temporary one of mode 0700.
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	cmd := exec.Command("tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--format=posix",
		"--pax-option=delete=atime,delete=ctime,exthdr.name=%d/PaxHeaders/%f", "--hard-dereference",
		"-C", dir, "-cf", "-", ".")
	cmd.Stdout = to
	return execute(cmd)
}

// layer returns the directory that fill fills as a layer.
func layer(fill func(dir string) error) (v1.Layer, error) {
	dir, err := os.MkdirTemp("", "heddle-layer-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var b bytes.Buffer
	if err := fill(dir); err != nil {
		return nil, err
	}
	if err := archive(&b, dir); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	// Without the cache it is compressed for its digest, and again to be written.
	return tarball.LayerFromOpener(open, tarball.WithCompressedCaching)
}

// compressed writes a directory as a tar.gz archive.
func compressed(to io.Writer, dir string) error {
	z := gzip.NewWriter(to)
	return errors.Join(archive(z, dir), z.Close())
}
