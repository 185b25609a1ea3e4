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

// basePackages are all that the programs need of a distribution: the C library
// that NVML is loaded with, and the authorities of HTTPS.
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

// apt runs apt-get for an architecture that need not be the machine's, in
// directories of its own; the machine's package lists stay as they are.
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
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return nil
}

// download puts packages of an architecture into a directory: the newest, or
// the versions given.
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

func identity(ctx context.Context, deb string) (name, version string, err error) {
	out, err := exec.CommandContext(ctx, "dpkg-deb", "--show", "--showformat=${Package} ${Version}", deb).Output()
	if err != nil {
		return "", "", fmt.Errorf("dpkg-deb %s: %w", deb, err)
	}
	name, version, _ = strings.Cut(string(out), " ")
	return name, version, nil
}

func hash(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// cacheOf keeps the packages of an architecture.
func cacheOf(arch string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "heddle", "images", arch)
	return cache, os.MkdirAll(cache, 0o755)
}

// fetch puts the packages of an architecture into the user's cache, and returns their pins.
// With newest, packages that the mirror has no more give way to those that it has.
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
			err = fmt.Errorf("%w\nA version that the mirror has no more: go run . lock, and commit %s", err, lockFile)
		}
		return pins, err
	}
	fmt.Fprintf(os.Stderr, "no release has these images: %v\n", err)
	return latest(ctx, arch, cache)
}

// latest pins the newest versions of the base's packages, which it puts into a directory.
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
		if p.sha256, err = hash(f); err != nil {
			return nil, err
		}
		if p.name, p.version, err = identity(ctx, f); err != nil {
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

// base is the tree of the base layer of an architecture. Each package is checked against
// its pin.
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
			return fmt.Errorf("%s %s for %s: no file with the SHA-256 of %s", p.name, p.version, arch, lockFile)
		}
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, dir).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w: %s", deb, err, out)
		}
	}
	return trim(dir)
}

// find is the file of a pinned package, by content.
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

// trim leaves the C library and the authorities, which the package installs one
// by one and a script of Debian's joins, and the user of the programs.
func trim(dir string) error {
	certificates, err := filepath.Glob(filepath.Join(dir, "usr/share/ca-certificates/mozilla/*.crt"))
	if err != nil {
		return err
	}
	if len(certificates) == 0 {
		return errors.New("ca-certificates holds no authorities")
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
	// Where a package has nothing in /lib and /lib64, those are links to directories in /usr,
	// which another package of the distribution makes.
	for _, name := range []string{"lib", "lib64"} {
		_, here := os.Lstat(filepath.Join(dir, name))
		if _, there := os.Stat(filepath.Join(dir, "usr", name)); here != nil && there == nil {
			errs = append(errs, os.Symlink("usr/"+name, filepath.Join(dir, name)))
		}
	}
	return errors.Join(append(errs, os.MkdirAll(filepath.Join(dir, "tmp"), 0o755))...)
}
