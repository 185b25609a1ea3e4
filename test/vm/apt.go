package vm

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// packages asks the distribution for packages without installing any.
type packages struct {
	cache string
	out   io.Writer
	// private are the options of package lists of our own, for machines whose
	// lists are empty or not ours to renew.
	private []string
}

// newestByOwnLists is newest after an update of package lists of our own.
func (p *packages) newestByOwnLists(ctx context.Context) (name, version string, err error) {
	if err := p.update(ctx); err != nil {
		return "", "", &MissingError{
			What:   "apt knows no package " + metaPackage,
			Remedy: "check apt's sources and the network, then apt-get update: " + err.Error(),
		}
	}
	if name, version, err = p.newest(ctx); err != nil {
		return "", "", &MissingError{What: err.Error(), Remedy: "a Debian with the section main is needed"}
	}
	return name, version, nil
}

// newest is the package that holds the newest kernel, and its version.
func (p *packages) newest(ctx context.Context) (name, version string, err error) {
	text, err := p.run(ctx, "", "apt-cache", "show", "--no-all-versions", metaPackage)
	if err != nil {
		return "", "", err
	}
	if name, version, err = parseDepends(text); err != nil || version != "" {
		return name, version, err
	}
	if text, err = p.run(ctx, "", "apt-cache", "show", "--no-all-versions", name); err != nil {
		return "", "", err
	}
	version = field(text, "Version")
	if version == "" {
		return "", "", fmt.Errorf("%s has no version", name)
	}
	return name, version, nil
}

// parseDepends reads the package and, if given, the version from the stanza of
// the meta package: "Depends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)".
func parseDepends(stanza string) (name, version string, err error) {
	for depend := range strings.SplitSeq(field(stanza, "Depends"), ",") {
		name, rest, _ := strings.Cut(strings.TrimSpace(depend), " ")
		if !strings.HasPrefix(name, "linux-image-") {
			continue
		}
		if v, ok := strings.CutPrefix(rest, "(= "); ok {
			version = strings.TrimSuffix(v, ")")
		}
		return name, version, nil
	}
	return "", "", fmt.Errorf("%s depends on no kernel package", metaPackage)
}

// field is a field of the first stanza.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// download fetches one package into dir.
func (p *packages) download(ctx context.Context, name, dir string) (string, error) {
	if _, err := p.run(ctx, dir, "apt-get", "-qq", "download", name); err != nil {
		return "", &MissingError{What: "apt-get cannot fetch " + name, Remedy: "check the network: " + err.Error()}
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("apt-get download %s left %d packages", name, len(debs))
	}
	return debs[0], nil
}

// update makes package lists of our own in the cache; it needs no root and
// changes nothing of the machine's.
func (p *packages) update(ctx context.Context) error {
	root := filepath.Join(p.cache, "apt")
	for _, dir := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return fmt.Errorf("package lists: %w", err)
		}
	}
	p.private = []string{"-o", "Dir::State::Lists=" + root + "/lists", "-o", "Dir::Cache=" + root}
	fmt.Fprintln(p.out, "fetching package lists of our own")
	_, err := p.run(ctx, "", "apt-get", "-qq", "update")
	return err
}

// run runs one of apt's tools in dir. APT's sandbox user could not write there.
func (p *packages) run(ctx context.Context, dir, tool string, args ...string) (string, error) {
	options := append([]string{"-o", "APT::Sandbox::User=root"}, p.private...)
	cmd := exec.CommandContext(ctx, tool, append(options, args...)...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &stderr
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", tool, err, strings.TrimSpace(stderr.String()))
	}
	return string(text), nil
}
