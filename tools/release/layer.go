package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// epoch is the time of every file, and of the images: no time is a part of them.
var epoch = time.Unix(0, 0).UTC()

// layerOf is a directory as a layer: names in order, owner root, one time.
// File modes are those of the tree, without what a umask may have taken.
func layerOf(dir string) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := addAll(w, dir); err != nil {
		return nil, fmt.Errorf("layer of %s: %w", dir, err)
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	// Else it is compressed for its digest, and again to be written.
	return tarball.LayerFromOpener(open, tarball.WithCompressedCaching)
}

// addAll adds what is below a directory, in order.
func addAll(w *tar.Writer, dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil || name == "." {
			return err
		}
		return add(w, path, name, d)
	})
}

func add(w *tar.Writer, path, name string, d fs.DirEntry) error {
	h := &tar.Header{Name: filepath.ToSlash(name), ModTime: epoch, Format: tar.FormatPAX}
	switch {
	case d.IsDir():
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, h.Name+"/", 0o755
		if name == "tmp" {
			h.Mode = 0o1777
		}
		return w.WriteHeader(h)
	case d.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, target, 0o777
		return w.WriteHeader(h)
	case !d.Type().IsRegular():
		return fmt.Errorf("%s is neither a file, a directory nor a link", name)
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	h.Typeflag, h.Size, h.Mode = tar.TypeReg, info.Size(), 0o644
	if info.Mode()&0o100 != 0 {
		h.Mode = 0o755
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
