package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// lockFile pins the Debian packages of the base layer, below the repository.
const lockFile = "tools/release/base.lock"

// basePackages lists what the programs need from a distribution: the C library that NVML is
// loaded with, and the certificate authorities.
var basePackages = []string{"libc6", "ca-certificates"}

// pin is a line of the lock file.
type pin struct{ arch, name, version, sha256 string }

func readLock(file string) ([]pin, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var pins []pin
	for n, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 4 {
			return nil, fmt.Errorf("%s:%d: want architecture, package, version, SHA-256", file, n+1)
		}
		pins = append(pins, pin{f[0], f[1], f[2], f[3]})
	}
	return pins, nil
}

// apt runs apt-get for any architecture, in its own directories: the machine's package lists do
// not change.
func apt(ctx context.Context, arch, state, in string, args ...string) error {
	for _, dir := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(state, dir), 0o755); err != nil {
			return err
		}
	}
	status := filepath.Join(state, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return err
	}
	all := append([]string{
		"-qq", "-o", "APT::Architecture=" + arch, "-o", "APT::Architectures=" + arch,
		"-o", "Dir::State::lists=" + filepath.Join(state, "lists"), "-o", "Dir::State::status=" + status,
		"-o", "Dir::Cache=" + filepath.Join(state, "cache"), "-o", "APT::Sandbox::User=root",
	}, args...)
	cmd := exec.CommandContext(ctx, "apt-get", all...)
	cmd.Dir = in
	return execute(cmd)
}

// download fetches packages of an architecture into a directory: the newest, or the given
// versions.
func download(ctx context.Context, arch, dir string, packages []string) ([]string, error) {
	state, err := os.MkdirTemp("", "heddle-apt-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(state)
	if err := apt(ctx, arch, state, dir, "update"); err != nil {
		return nil, err
	}
	if err := apt(ctx, arch, state, dir, append([]string{"download"}, packages...)...); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(dir, "*.deb"))
}

// identity returns the name and version in a package's file name, name_version_arch.deb, where
// apt-get escapes colons.
func identity(deb string) (name, version string) {
	parts := strings.Split(filepath.Base(deb), "_")
	return parts[0], strings.ReplaceAll(parts[1], "%3a", ":")
}

func hash(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	return digest(b), nil
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// cacheOf returns the directory with the packages of an architecture.
func cacheOf(arch string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "heddle", "images", arch)
	return cache, os.MkdirAll(cache, 0o755)
}

// fetch downloads the packages of an architecture into the user's cache, and returns their pins.
// With newest, packages that the mirror no longer has are replaced by the newest ones.
func fetch(ctx context.Context, arch string, pins []pin, newest bool) ([]pin, error) {
	cache, err := cacheOf(arch)
	if err != nil {
		return nil, err
	}
	var missing []string
	pins = slices.DeleteFunc(slices.Clone(pins), func(p pin) bool { return p.arch != arch })
	for _, p := range pins {
		if find(cache, p) == "" {
			missing = append(missing, p.name+"="+p.version)
		}
	}
	if len(missing) == 0 {
		return pins, nil
	}
	_, err = download(ctx, arch, cache, missing)
	if err == nil || !newest {
		if err != nil {
			err = fmt.Errorf("%w\nIf the mirror no longer has a version: go run . lock, and commit %s", err, lockFile)
		}
		return pins, err
	}
	fmt.Fprintf(os.Stderr, "these images differ from a release's: %v\n", err)
	return latest(ctx, arch, cache)
}

// latest downloads the newest versions of the base's packages into a directory, and pins them.
func latest(ctx context.Context, arch, to string) ([]pin, error) {
	dir, err := os.MkdirTemp(to, "newest-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	files, err := download(ctx, arch, dir, basePackages)
	if err != nil {
		return nil, err
	}
	var pins []pin
	for _, f := range files {
		p := pin{arch: arch}
		p.name, p.version = identity(f)
		if p.sha256, err = hash(f); err != nil {
			return nil, err
		}
		if err := os.Rename(f, filepath.Join(to, filepath.Base(f))); err != nil {
			return nil, err
		}
		pins = append(pins, p)
	}
	return pins, nil
}

// lock pins the newest versions of the base's packages.
func lock(ctx context.Context, file string) error {
	var b strings.Builder
	b.WriteString("# Debian packages of the images' base layer; written by: images lock\n# architecture package version sha256\n")
	for _, arch := range []string{"amd64", "arm64"} {
		cache, err := cacheOf(arch)
		if err != nil {
			return err
		}
		pins, err := latest(ctx, arch, cache)
		if err != nil {
			return err
		}
		for _, p := range pins {
			fmt.Fprintln(&b, p.arch, p.name, p.version, p.sha256)
		}
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

// base unpacks the base layer of an architecture. Each package is verified against its pin.
func base(ctx context.Context, arch, dir string, pins []pin) error {
	cache, err := cacheOf(arch)
	if err != nil {
		return err
	}
	for _, p := range pins {
		if p.arch != arch {
			continue
		}
		deb := find(cache, p)
		if deb == "" {
			return fmt.Errorf("%s %s for %s: no file has the SHA-256 in %s", p.name, p.version, arch, lockFile)
		}
		if err := execute(exec.CommandContext(ctx, "dpkg-deb", "-x", deb, dir)); err != nil {
			return err
		}
	}
	return trim(dir)
}

// find returns the file of a pinned package, by content.
func find(dir string, p pin) string {
	files, err := filepath.Glob(filepath.Join(dir, p.name+"_*.deb"))
	if err != nil {
		return ""
	}
	for _, f := range files {
		if sum, err := hash(f); err == nil && sum == p.sha256 {
			return f
		}
	}
	return ""
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
	for _, name := range []string{
		"usr/share/ca-certificates", "usr/share/man", "usr/share/lintian", "usr/sbin", "etc/ca-certificates",
	} {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, name)))
	}
	for _, pattern := range []string{"lib/*/gconv", "usr/lib/*/gconv", "usr/lib/*/audit"} {
		found, _ := filepath.Glob(filepath.Join(dir, pattern)) // The patterns are well-formed.
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
