//go:build linux

package cluster

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/test/cluster/image"
)

// The images every cluster has. None has the tag latest, which the kubelet would
// try to pull.
const (
	PauseImage   = "localhost/pause:1"
	BusyboxImage = "localhost/busybox:1"
)

// nodePart builds clusternode, out of this module.
func (b Builder) nodePart() part {
	dir := filepath.Join(b.Source, "test", "cluster")
	return part{
		name: "node", cost: 3 * time.Minute,
		inputs: []string{filepath.Join(dir, "cmd", "clusternode"), filepath.Join(dir, "internal", "nodens")},
		build: func(ctx context.Context, out string) error {
			args := []string{"-ldflags", "-s -w", "-o", out + "/", "./test/cluster/cmd/clusternode"}
			return b.goBuild(ctx, b.Source, []string{"CGO_ENABLED=0"}, args)
		},
	}
}

// imagesPart packs the images of every cluster.
func (b Builder) imagesPart() part {
	dir := filepath.Join(b.Source, "test", "cluster")
	return part{
		name: "images", cost: 2 * time.Second,
		inputs: []string{filepath.Join(dir, "images"), filepath.Join(dir, "image")},
		build: func(ctx context.Context, out string) error {
			args := []string{"-ldflags", "-s -w", "-o", out + "/", "./test/cluster/images/..."}
			if err := b.goBuild(ctx, b.Source, []string{"CGO_ENABLED=0"}, args); err != nil {
				return err
			}
			spec := image.Spec{
				Name: PauseImage, Files: map[string]string{"/pause": filepath.Join(out, "pause")}, Entrypoint: []string{"/pause"},
			}
			if err := image.Pack(ctx, filepath.Join(out, "pause.tar"), spec); err != nil {
				return err
			}
			return b.packBusybox(ctx, filepath.Join(out, "busybox.tar"))
		},
	}
}

// packBusybox packs a shell and the usual commands, from the machine's static
// busybox or the distribution's package.
func (b Builder) packBusybox(ctx context.Context, out string) error {
	file, err := exec.LookPath("busybox")
	if err != nil || !static(file) {
		root, err := b.debian(ctx, "busybox-static")
		if err != nil {
			return err
		}
		file = filepath.Join(root, "bin", "busybox")
	}
	applets, err := b.output(ctx, exec.CommandContext(ctx, file, "--list"))
	if err != nil {
		return fmt.Errorf("list busybox commands: %w", err)
	}
	links := map[string]string{}
	for applet := range strings.FieldsSeq(applets) {
		if applet != "busybox" {
			links["/bin/"+applet] = "/bin/busybox"
		}
	}
	return image.Pack(ctx, out, image.Spec{
		Name:  BusyboxImage,
		Files: map[string]string{"/bin/busybox": file}, Links: links, Cmd: []string{"/bin/sh"},
	})
}

// static reports whether a program needs no loader.
func static(file string) bool {
	f, err := elf.Open(file)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// runcPart builds runc, statically, with libseccomp: the kubelet asks for the
// RuntimeDefault seccomp profile for every sandbox, and a runc without the
// seccomp tag rejects it.
func (b Builder) runcPart() part {
	dir := b.moduleDir("runc")
	version := strings.TrimPrefix(b.pin("runc", "github.com/opencontainers/runc"), "v")
	flags := []string{
		"-tags", "seccomp netgo osusergo",
		"-ldflags", "-s -w -X main.version=" + version + " -extldflags -static",
	}
	return part{
		name: "runc", cost: 3 * time.Minute, inputs: []string{dir}, params: strings.Join(flags, "\n"),
		build: func(ctx context.Context, out string) error {
			pkgConfig, err := b.seccomp(ctx)
			if err != nil {
				return err
			}
			args := append(slices.Clone(flags), "-o", filepath.Join(out, "runc"), "github.com/opencontainers/runc")
			return b.goBuild(ctx, dir, []string{"CGO_ENABLED=1", "PKG_CONFIG=" + pkgConfig}, args)
		},
	}
}

// seccomp finds libseccomp's header and static library, on the machine or in the
// distribution's package, and returns a stand-in for pkg-config that names them.
func (b Builder) seccomp(ctx context.Context) (string, error) {
	include, lib, ok := findSeccomp("/")
	if !ok {
		root, err := b.debian(ctx, "libseccomp-dev")
		if err != nil {
			return "", err
		}
		if include, lib, ok = findSeccomp(root); !ok {
			return "", errors.New("libseccomp-dev holds no libseccomp.a")
		}
	}
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in
*--cflags*) echo '-I%s' ;;
*--libs*) echo '-L%s -lseccomp' ;;
esac
`, include, lib)
	file := filepath.Join(b.Cache, "pkg-config")
	return file, os.WriteFile(file, []byte(script), 0o755)
}

func findSeccomp(root string) (include, lib string, ok bool) {
	for _, pattern := range []string{"usr/lib/*-linux-gnu", "usr/lib64", "usr/lib"} {
		matches, _ := filepath.Glob(filepath.Join(root, pattern, "libseccomp.a")) // Only a bad pattern is an error.
		include = filepath.Join(root, "usr", "include")
		if _, err := os.Stat(filepath.Join(include, "seccomp.h")); err == nil && len(matches) > 0 {
			return include, filepath.Dir(matches[0]), true
		}
	}
	return "", "", false
}

// debian downloads a package of the distribution and unpacks it into the cache.
// Nothing is installed.
func (b Builder) debian(ctx context.Context, name string) (string, error) {
	root := filepath.Join(b.Cache, "debian", name)
	if _, err := os.Stat(filepath.Join(root, "usr")); err == nil {
		return root, nil
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	get := exec.CommandContext(ctx, "apt-get", "-qq", "download", name)
	get.Dir = root
	if _, err := b.output(ctx, get); err != nil {
		return "", fmt.Errorf("download %s (install it, or run apt-get update): %w", name, err)
	}
	files, err := filepath.Glob(filepath.Join(root, "*.deb"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("download %s: no file came", name)
	}
	if _, err := b.output(ctx, exec.CommandContext(ctx, "dpkg-deb", "-x", files[0], root)); err != nil {
		return "", fmt.Errorf("unpack %s: %w", name, err)
	}
	return root, os.Remove(files[0])
}
