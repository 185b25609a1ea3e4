//go:build linux

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// module is the path of the module this package belongs to.
const module = "github.com/heddle-dev/heddle"

// Builder builds what a cluster runs, into a cache outside the repository. Every
// part is keyed by its inputs, so a build with nothing to do takes no time.
type Builder struct {
	// Cache is the directory everything goes to; empty means DefaultCache.
	Cache string
	// Source is this repository's root; empty means the one around the working directory.
	Source string
	// Log receives progress lines; nil means none.
	Log io.Writer

	// retries are the pauses before a build is tried again whose downloads failed.
	retries []time.Duration
}

// Binaries are the files a cluster is started from.
type Binaries struct {
	Kubernetes string   `json:"kubernetes"` // directory with etcd, kube-apiserver, ..., kubectl
	Containerd string   `json:"containerd"` // directory with containerd, its shim and ctr
	Runc       string   `json:"runc"`       // file
	CNI        string   `json:"cni"`        // directory of the network plugins
	Kwok       string   `json:"kwok"`       // file
	Node       string   `json:"node"`       // file, clusternode
	Images     []string `json:"images"`     // docker-archive files that every cluster loads
}

// DefaultCache is $HEDDLE_CACHE or, without it, heddle/cluster below the user's
// cache directory.
func DefaultCache() (string, error) {
	if dir := os.Getenv("HEDDLE_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find user cache directory: %w", err)
	}
	return filepath.Join(dir, "heddle", "cluster"), nil
}

// Build makes what is missing and returns where everything is. Builds of several
// processes wait for each other. With [Prebuilt] nothing is built.
func (b Builder) Build(ctx context.Context) (Binaries, error) {
	if dir := Prebuilt(); dir != "" {
		return readPrebuilt(dir)
	}
	b, err := b.withDefaults()
	if err != nil {
		return Binaries{}, err
	}
	dirs, err := b.buildParts(ctx, b.parts()...)
	if err != nil {
		return Binaries{}, err
	}
	images, err := filepath.Glob(filepath.Join(dirs["images"], "*.tar"))
	if err != nil {
		return Binaries{}, err
	}
	return Binaries{
		Kubernetes: dirs["kubernetes"],
		Containerd: dirs["containerd"],
		Runc:       filepath.Join(dirs["runc"], "runc"),
		CNI:        dirs["cni"],
		Kwok:       filepath.Join(dirs["kwok"], "kwok"),
		Node:       filepath.Join(dirs["node"], "clusternode"),
		Images:     images,
	}, nil
}

// Older builds the tools of a module in build, which are components of an older Kubernetes, such as kubelet-1.31, and
// returns their directory. A cluster has the newest ones.
func (b Builder) Older(ctx context.Context, name string) (dir string, err error) {
	if b, err = b.withDefaults(); err != nil {
		return "", err
	}
	flags := kubernetesFlags(b.pin(name, "k8s.io/kubernetes"))
	dirs, err := b.buildParts(ctx, b.modulePart(name, 5*time.Minute, noCGO, flags, nil, "tool"))
	return dirs[name], err
}

// buildParts makes what is missing of some parts, and returns their directories.
func (b Builder) buildParts(ctx context.Context, parts ...part) (dirs map[string]string, err error) {
	toolchain, err := b.output(ctx, exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOARCH"))
	if err != nil {
		return nil, fmt.Errorf("ask go for its version: %w", err)
	}
	dirs = map[string]string{}
	missing := 0
	for _, p := range parts {
		key, err := p.key(toolchain)
		if err != nil {
			return nil, fmt.Errorf("hash inputs of %s: %w", p.name, err)
		}
		dirs[p.name] = filepath.Join(b.Cache, "bin", p.name+"-"+key)
		if !isThere(dirs[p.name]) {
			missing++
		}
	}
	for _, p := range parts {
		if !isThere(dirs[p.name]) {
			_, _ = fmt.Fprintf(b.Log, "build %s (%d parts left), at most %s of one core\n", p.name, missing, p.cost)
			if err := b.ensure(ctx, p, dirs[p.name]); err != nil {
				return nil, fmt.Errorf("build %s: %w", p.name, err)
			}
			missing--
		}
		prune(dirs[p.name], p.name, time.Now())
	}
	return dirs, nil
}

func (b Builder) withDefaults() (Builder, error) {
	var err error
	if b.Cache == "" {
		if b.Cache, err = DefaultCache(); err != nil {
			return b, err
		}
	}
	if b.Source == "" {
		if b.Source, err = findSource(); err != nil {
			return b, err
		}
	}
	if b.Log == nil {
		b.Log = io.Discard
	}
	if b.retries == nil {
		b.retries = []time.Duration{5 * time.Second, 20 * time.Second, time.Minute}
	}
	return b, nil
}

// findSource walks up from the working directory to this module's go.mod.
func findSource() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(data, []byte("module "+module+"\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no checkout of %s above %s", module, start)
		}
	}
}

// ensure builds one part. Its directory appears complete or not at all.
func (b Builder) ensure(ctx context.Context, p part, dir string) error {
	unlock, err := lockFile(ctx, filepath.Join(b.Cache, "build.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if isThere(dir) {
		return nil // Another process built it while this one waited.
	}
	partial := dir + ".partial"
	if err := errors.Join(os.RemoveAll(partial), os.MkdirAll(partial, 0o755)); err != nil {
		return err
	}
	if err := p.build(ctx, partial); err != nil {
		return err
	}
	return os.Rename(partial, dir)
}

func isThere(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

// prune removes builds of a part that no Build has asked for in two weeks, and
// notes that keep was asked for now. A failure costs disk space only.
func prune(keep, name string, now time.Time) {
	const unused = 14 * 24 * time.Hour
	_ = os.Chtimes(keep, now, now)
	found, _ := filepath.Glob(filepath.Join(filepath.Dir(keep), name+"-????????????")) // Only a bad pattern is an error.
	for _, dir := range found {
		if info, err := os.Stat(dir); err == nil && now.Sub(info.ModTime()) > unused {
			_ = os.RemoveAll(dir)
		}
	}
}

// goBuild runs go build in a module's directory, at low priority, and again where a
// download failed: what is there already is kept.
func (b Builder) goBuild(ctx context.Context, dir string, env, args []string) error {
	for _, wait := range b.retries {
		err := b.tryBuild(ctx, dir, env, args)
		if err == nil || ctx.Err() != nil || !isDownload(err) {
			return err
		}
		_, _ = fmt.Fprintf(b.Log, "a download failed, tried again in %s: %v\n", wait, err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
	return b.tryBuild(ctx, dir, env, args)
}

// isDownload reports whether an error of the go command is one of the network.
func isDownload(err error) bool {
	return slices.ContainsFunc([]string{
		"dial tcp", "i/o timeout", "connection reset", "TLS handshake timeout", "unexpected EOF",
		"429 Too Many Requests", "500 Internal", "502 Bad Gateway", "503 Service Unavailable", "504 Gateway",
	}, func(text string) bool { return strings.Contains(err.Error(), text) })
}

func (b Builder) tryBuild(ctx context.Context, dir string, env, args []string) error {
	all := append([]string{"build", "-trimpath", "-buildvcs=false", "-mod=readonly"}, args...)
	cmd := exec.CommandContext(ctx, "go", all...)
	if nice, err := exec.LookPath("nice"); err == nil {
		cmd = exec.CommandContext(ctx, nice, append([]string{"go"}, all...)...)
	}
	cmd.Dir = dir
	// A workspace above the checkout would change the pinned versions.
	cmd.Env = append(os.Environ(), append([]string{"GOWORK=off", "GOFLAGS="}, env...)...)
	_, err := b.output(ctx, cmd)
	return err
}

// output runs a command and returns its standard output; a failure carries the
// end of the command's output.
func (Builder) output(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, tail(stderr.String(), 2000))
	}
	return stdout.String(), nil
}

func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		s = "..." + s[len(s)-n:]
	}
	return s
}
