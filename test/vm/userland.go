//go:build linux

package vm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Userland returns a folder with the unpacked packages, all that they depend on, and busybox as the shell, from the
// cache; it fetches them with apt-get download if they are not there. Nothing is installed, no maintainer script runs.
// additional packages come without what they depend on. A [MissingError] means that this machine cannot.
func Userland(
	ctx context.Context, cacheDir string, out io.Writer, packages []string, additional ...string,
) (string, error) {
	if err := checkTools(); err != nil {
		return "", err
	}
	all, err := withDependencies(ctx, append([]string{"busybox-static"}, packages...))
	if err != nil {
		return "", &MissingError{What: err.Error(), Remedy: "run apt-get update, on a Debian with the section main"}
	}
	download := append([]string{"-qq", "download"}, append(all, additional...)...)
	files, err := apt(ctx, "", "apt-get", append([]string{"--print-uris"}, download...)...)
	if err != nil {
		return "", &MissingError{What: err.Error(), Remedy: "run apt-get update"}
	}
	place := filepath.Join(cacheDir, fmt.Sprintf("userland-%x", sha256.Sum256([]byte(files)))[:24])
	if _, err := os.Stat(place); err == nil {
		return place, nil
	}
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return "", fmt.Errorf("userland cache: %w", err)
	}
	work, err := os.MkdirTemp(cacheDir, "new-")
	if err != nil {
		return "", fmt.Errorf("userland cache: %w", err)
	}
	defer os.RemoveAll(work)
	fmt.Fprintf(out, "fetching %d packages for %s\n", len(all)+len(additional), strings.Join(packages, ", "))
	if _, err := apt(ctx, work, "apt-get", download...); err != nil {
		return "", &MissingError{What: "apt-get cannot fetch packages", Remedy: "check the network: " + err.Error()}
	}
	root := filepath.Join(work, "root")
	if err := unpackUserland(ctx, work, root); err != nil {
		return "", fmt.Errorf("userland: %w", err)
	}
	// Another process may have been faster; its work is as good.
	renameErr := os.Rename(root, place)
	if _, err := os.Stat(place); err != nil {
		return "", errors.Join(err, renameErr)
	}
	return place, nil
}

// withDependencies lists packages and all that they depend on. Virtual packages are in angle brackets.
func withDependencies(ctx context.Context, packages []string) ([]string, error) {
	text, err := apt(ctx, "", "apt-cache", append([]string{
		"depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks",
		"--no-replaces", "--no-enhances",
	}, packages...)...)
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "<") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all, nil
}

// unpackUserland unpacks the packages of a folder, and adds what is not in packages.
func unpackUserland(ctx context.Context, debs, root string) error {
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("found no packages in %s", debs)
	}
	for _, deb := range files {
		if err := run(ctx, "dpkg-deb", "-x", deb, root); err != nil {
			return err
		}
	}
	for dir := range strings.FieldsSeq("proc sys dev tmp files") {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for dir := range strings.FieldsSeq("bin sbin lib lib64") { // A merged /usr has none of them.
		if err := os.Symlink("usr/"+dir, filepath.Join(root, dir)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if err := os.Symlink("busybox", filepath.Join(root, "bin/sh")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0:root:/tmp:/bin/sh\n"), 0o644)
}
