//go:build linux

package main

import (
	"path/filepath"

	"github.com/heddle-dev/heddle/test/cluster/image"
	"github.com/heddle-dev/heddle/test/install"
)

// hook is the second program of the device plugin's image.
const hook = "heddle-cdi-hook"

// pack makes the image of a program that is built, and returns the archive. It has the
// machine's own C library: a release's images stand on Debian packages, and the demo runs
// where those cannot be had.
func pack(i *install.Installer, binary string) (archive string, err error) {
	const dir = "/usr/local/bin/"
	program := filepath.Join(i.Dir, binary)
	files := map[string]string{dir + binary: program}
	if binary == devicePlugin {
		files[dir+hook] = filepath.Join(i.Dir, hook)
	}
	archive = program + ".tar"
	return archive, image.Pack(archive, image.Spec{
		Name:       install.Registry + "/" + binary + ":" + install.Tag,
		Files:      files,
		Entrypoint: []string{dir + binary},
		User:       "65532:65532",
	})
}
