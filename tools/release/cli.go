package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// platforms returns where people run the CLI, as GOOS/GOARCH.
func platforms() []string {
	return []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"}
}

// cli writes an archive of the CLI for each platform, and the checksums of all (checksums.txt, for
// sha256sum -c). All are built without cgo: the CLI reads NVML only on a node, from its image.
func cli(ctx context.Context, root, out, version string, platforms []string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var sums strings.Builder
	for _, p := range platforms {
		file := "heddle_" + version + "_" + strings.ReplaceAll(p, "/", "_") + ".tar.gz"
		content, err := cliArchive(ctx, root, version, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if err := os.WriteFile(filepath.Join(out, file), content, 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%s  %s\n", digest(content), file)
		fmt.Println(filepath.Join(out, file))
	}
	return os.WriteFile(filepath.Join(out, "checksums.txt"), []byte(sums.String()), 0o644)
}

// cliArchive returns the program under both its names, and the licence.
func cliArchive(ctx context.Context, root, version, platform string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "heddle-cli-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	system, arch, _ := strings.Cut(platform, "/")
	err = goBuild(ctx, filepath.Join(root, "cmd/heddle"), filepath.Join(dir, "heddle"), "-s -w -buildid= -X main.version="+version,
		[]string{"CGO_ENABLED=0", "GOOS=" + system, "GOARCH=" + arch})
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
