package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// debian is a Debian package of the base layer.
type debian struct{ file, name, version, sha256 string }

// fresh is the age up to which downloaded packages are not replaced by newer ones.
const fresh = 24 * time.Hour

// packages returns what the programs need from a distribution, in the machine's newest versions: the C
// library that NVML is loaded with, and the certificate authorities. The user's cache keeps them; without
// a mirror the cached ones are used.
func packages(ctx context.Context, arch string) ([]debian, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, "heddle", "images", arch)
	if info, err := os.Stat(dir); err != nil || time.Since(info.ModTime()) > fresh {
		err := download(ctx, arch, dir)
		if info == nil && err != nil {
			return nil, err
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "using the packages of an earlier build:", err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return nil, err
	}
	var all []debian
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		// name_version_arch.deb, where apt-get escapes colons.
		parts := strings.Split(filepath.Base(file), "_")
		all = append(all, debian{file, parts[0], strings.ReplaceAll(parts[1], "%3a", ":"), digest(content)})
	}
	return all, nil
}

// download fetches the packages of any architecture by apt-get. The machine's package lists do not change.
func download(ctx context.Context, arch, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(to), "apt-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	status, debs := filepath.Join(dir, "status"), filepath.Join(dir, "debs")
	err = os.WriteFile(status, nil, 0o644)
	for _, name := range []string{"lists/partial", "cache/archives/partial", "debs"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	for _, args := range [][]string{{"update"}, {"download", "libc6", "ca-certificates"}} {
		cmd := exec.CommandContext(ctx, "apt-get", append(args,
			"-qq", "-o", "APT::Architecture="+arch, "-o", "APT::Architectures="+arch, "-o", "APT::Sandbox::User=root",
			"-o", "Dir::State::lists="+filepath.Join(dir, "lists"), "-o", "Dir::State::status="+status,
			"-o", "Dir::Cache="+filepath.Join(dir, "cache"))...)
		if cmd.Dir = debs; err == nil {
			err = execute(cmd)
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(to), os.Rename(debs, to))
}

// unpack unpacks packages into a directory, and trims it to the base layer.
func unpack(ctx context.Context, dir string, packages []debian) error {
	for _, p := range packages {
		if err := execute(exec.CommandContext(ctx, "dpkg-deb", "-x", p.file, dir)); err != nil {
			return err
		}
	}
	return trim(dir)
}

// trim keeps the C library, joins the certificate authorities, as a script of Debian's does, and
// adds the user of the programs.
func trim(dir string) error {
	certificates, err := filepath.Glob(filepath.Join(dir, "usr/share/ca-certificates/mozilla/*.crt"))
	if err != nil {
		return err
	}
	if len(certificates) == 0 {
		return errors.New("ca-certificates has no authorities")
	}
	var bundle []byte
	for _, c := range certificates {
		b, err := os.ReadFile(c)
		if err != nil {
			return err
		}
		bundle = append(append(bundle, bytes.TrimSpace(b)...), '\n')
	}
	var errs []error
	for _, pattern := range []string{
		"usr/share/ca-certificates", "usr/share/man", "usr/share/lintian", "usr/sbin", "etc/ca-certificates",
		"lib/*/gconv", "usr/lib/*/gconv", "usr/lib/*/audit",
	} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		errs = append(errs, err)
		for _, name := range found {
			errs = append(errs, os.RemoveAll(name))
		}
	}
	for name, text := range map[string]string{
		"etc/ssl/certs/ca-certificates.crt": string(bundle),
		"etc/passwd":                        "root:x:0:0:root:/:/\nheddle:x:65532:65532:heddle:/:/\n",
		"etc/group":                         "root:x:0:\nheddle:x:65532:\n",
		"etc/nsswitch.conf":                 "hosts: files dns\n",
	} {
		file := filepath.Join(dir, name)
		errs = append(errs, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644))
	}
	// If a package has nothing in /lib and /lib64, they are links to directories in /usr, which
	// another package creates.
	for _, name := range []string{"lib", "lib64"} {
		_, here := os.Lstat(filepath.Join(dir, name))
		if _, there := os.Stat(filepath.Join(dir, "usr", name)); here != nil && there == nil {
			errs = append(errs, os.Symlink("usr/"+name, filepath.Join(dir, name)))
		}
	}
	temp := filepath.Join(dir, "tmp")
	return errors.Join(append(errs, os.MkdirAll(temp, 0o755), os.Chmod(temp, 0o777|os.ModeSticky))...)
}
