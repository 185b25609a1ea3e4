package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// platforms are where people run the CLI, as GOOS/GOARCH, comma-separated.
const platforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64"

// manifest is the plugin's entry in krew's index: kubectl heddle.
//
//go:embed krew.yaml
var manifest string

// asset is an archive with the CLI.
type asset struct {
	OS, Arch, File, SHA256 string
}

// cli writes an archive of the CLI for each platform, the checksums of all
// (checksums.txt, for sha256sum -c) and the manifest for krew (heddle.yaml).
// All are built without cgo: the CLI reads NVML only on a node, from its image.
func cli(ctx context.Context, root, out, version string, platforms []string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var assets []asset
	var sums strings.Builder
	for _, p := range platforms {
		a := asset{}
		a.OS, a.Arch, _ = strings.Cut(p, "/")
		a.File = "heddle_" + version + "_" + a.OS + "_" + a.Arch + ".tar.gz"
		content, err := a.build(ctx, root, version)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if err := os.WriteFile(filepath.Join(out, a.File), content, 0o644); err != nil {
			return err
		}
		a.SHA256 = digest(content)
		assets = append(assets, a)
		fmt.Fprintf(&sums, "%s  %s\n", a.SHA256, a.File)
		fmt.Println(filepath.Join(out, a.File))
	}
	if err := os.WriteFile(filepath.Join(out, "checksums.txt"), []byte(sums.String()), 0o644); err != nil {
		return err
	}
	var krew bytes.Buffer
	values := map[string]any{"Version": version, "Assets": assets}
	if err := template.Must(template.New("krew").Parse(manifest)).Execute(&krew, values); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "heddle.yaml"), krew.Bytes(), 0o644)
}

// build returns the archive: the program under both its names, and the licence.
func (a asset) build(ctx context.Context, root, version string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "heddle-cli-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	err = goBuild(ctx, filepath.Join(root, "cmd/heddle"), filepath.Join(dir, "heddle"), "-s -w -buildid= -X main.version="+version,
		[]string{"CGO_ENABLED=0", "GOOS=" + a.OS, "GOARCH=" + a.Arch}, ".")
	if err != nil {
		return nil, err
	}
	licence, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "LICENSE"), licence, 0o644); err != nil {
		return nil, err
	}
	// kubectl runs a program of this name as `kubectl heddle`.
	if err := os.Symlink("heddle", filepath.Join(dir, "kubectl-heddle")); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = compressed(&b, dir)
	return b.Bytes(), err
}
