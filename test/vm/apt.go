//go:build linux

package vm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// newestKernel is the package of the distribution's newest kernel, and its version.
func newestKernel(ctx context.Context) (name, version string, err error) {
	text, err := apt(ctx, "", "apt-cache", "show", "--no-all-versions", metaPackage)
	if err != nil {
		return "", "", err
	}
	if name, version, err = parseDepends(text); err != nil || version != "" {
		return name, version, err
	}
	if text, err = apt(ctx, "", "apt-cache", "show", "--no-all-versions", name); err != nil {
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
func download(ctx context.Context, name, dir string) (string, error) {
	if _, err := apt(ctx, dir, "apt-get", "-qq", "download", name); err != nil {
		return "", &MissingError{What: "apt-get cannot fetch " + name, Remedy: "check the network: " + err.Error()}
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("apt-get download %s left %d packages", name, len(debs))
	}
	return debs[0], nil
}

// apt runs one of apt's tools in dir. APT's sandbox user could not write there.
func apt(ctx context.Context, dir, tool string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, tool, append([]string{"-o", "APT::Sandbox::User=root"}, args...)...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &stderr
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", tool, err, strings.TrimSpace(stderr.String()))
	}
	return string(text), nil
}
