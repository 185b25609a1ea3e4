// Package install installs heddle in a cluster of test/cluster as an operator would: with the images
// of a release, and the Helm chart. It builds everything from the working tree, and downloads only
// the Debian packages of the images' base.
package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/cluster/image"
)

// Tag is the tag of the images that Image makes; not latest, so that the
// kubelet asks no registry.
const Tag = "test"

// Registry is the registry value that goes with them.
const Registry = "localhost"

// Installer knows where the working tree is and where built things go. It makes
// each thing once: to ask go whether a binary is current takes seconds, and tests ask
// a hundred times. Its methods may be called from several goroutines.
type Installer struct {
	// Root is the repository's root.
	Root string
	// Dir receives binaries and images; it must exist.
	Dir string
	// Log receives progress lines; nil means none.
	Log io.Writer

	programs string // directory where all of a machine's installers have programs linked

	mu     sync.Mutex
	built  map[string]bool // binaries in Dir that are of this working tree
	images map[string]bool // layouts in Dir that have them
	loaded map[onNode]bool
	// noMirror is true once the packages of a release's images could not be had.
	noMirror bool
	helm     string // the pinned Helm's program
}

// onNode is an image that a node has.
type onNode struct {
	cluster *cluster.Cluster
	binary  string
}

// New finds the repository around the working directory.
func New(ctx context.Context, dir string, log io.Writer) (*Installer, error) {
	mod, err := output(exec.CommandContext(ctx, "go", "env", "GOMOD"))
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = io.Discard
	}
	cache, err := cluster.DefaultCache()
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make room for images: %w", err)
	}
	return &Installer{
		Root: filepath.Dir(strings.TrimSpace(mod)), Dir: dir, Log: log, programs: filepath.Join(cache, "programs"),
		built: map[string]bool{}, images: map[string]bool{}, loaded: map[onNode]bool{},
	}, nil
}

// Build compiles one of cmd/ and returns the file.
func (i *Installer) Build(ctx context.Context, binary string) (string, error) {
	return filepath.Join(i.Dir, binary), i.BuildAll(ctx, binary)
}

// BuildAll compiles several of cmd/ in one go, as a release does. An image's second
// program comes with its first.
func (i *Installer) BuildAll(ctx context.Context, binaries ...string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return once(i.built, binaries, func(missing []string) error {
		return i.release(ctx, append([]string{"programs", "-out", i.Dir}, missing...)...)
	})
}

// once makes what is not made yet.
func once(made map[string]bool, names []string, do func(missing []string) error) error {
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return made[name] })
	if len(missing) == 0 {
		return nil
	}
	if err := do(missing); err != nil {
		return err
	}
	for _, name := range missing {
		made[name] = true
	}
	return nil
}

// release runs tools/release, which owns how a program is linked and what is in an image.
func (i *Installer) release(ctx context.Context, args ...string) error {
	fmt.Fprintf(i.Log, "release %s\n", strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, "go", slices.Concat(
		[]string{"run", ".", args[0], "-root", i.Root, "-programs", i.programs, "-version", Tag}, args[1:])...)
	cmd.Dir = filepath.Join(i.Root, "tools/release")
	_, err := output(cmd)
	return err
}

// Layouts makes the images of binaries as `make images` does, for the machine's architecture.
func (i *Installer) Layouts(ctx context.Context, binaries ...string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return once(i.images, binaries, func(missing []string) error {
		return i.release(ctx, append([]string{
			"images", "-out", i.Layout(""), "-arch", runtime.GOARCH, "-registry", Registry,
		}, missing...)...)
	})
}

// Layout is the OCI layout of an image that Layouts made.
func (i *Installer) Layout(binary string) string { return filepath.Join(i.Dir, "images", binary) }

// Image makes the images of binaries, and loads them into the node as localhost/<binary>:test.
func (i *Installer) Image(ctx context.Context, c *cluster.Cluster, binaries ...string) error {
	archiveOf, build := i.archive, i.Layouts
	if i.withoutMirror() {
		archiveOf, build = i.Pack, i.BuildAll
	}
	err := build(ctx, binaries...)
	if err != nil && strings.Contains(err.Error(), "apt-get") && !i.withoutMirror() {
		fmt.Fprintf(i.Log, "no images of a release from here on, but ones with this machine's C library: %v\n", err)
		i.mu.Lock()
		i.noMirror = true
		i.mu.Unlock()
		return i.Image(ctx, c, binaries...)
	}
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, binary := range binaries {
		if i.loaded[onNode{c, binary}] {
			continue
		}
		archive, err := archiveOf(ctx, binary)
		if err != nil {
			return err
		}
		if err := errors.Join(c.LoadImage(ctx, archive), os.Remove(archive)); err != nil {
			return err
		}
		i.loaded[onNode{c, binary}] = true
	}
	return nil
}

// withoutMirror is whether the Debian packages of a release's images could not be had: to find
// that out again takes apt-get minutes where no network is.
func (i *Installer) withoutMirror() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.noMirror
}

// archive is the layout of an image that Layouts made, as one file.
func (i *Installer) archive(ctx context.Context, binary string) (string, error) {
	file := i.Layout(binary) + ".tar"
	_, err := output(exec.CommandContext(ctx, "tar", "-cf", file, "-C", i.Layout(binary), "."))
	return file, err
}

// Pack makes the image of a program that is built, and returns the archive. It has the
// machine's own C library: a release's images stand on Debian packages, which cannot be had
// everywhere.
func (i *Installer) Pack(ctx context.Context, binary string) (archive string, err error) {
	const dir, hook = "/usr/local/bin/", "heddle-cdi-hook"
	program := filepath.Join(i.Dir, binary)
	files := map[string]string{dir + binary: program}
	if binary == "heddle-node" {
		files[dir+hook] = filepath.Join(i.Dir, hook)
	}
	archive = program + ".tar"
	return archive, image.Pack(ctx, archive, image.Spec{
		Name:       Registry + "/" + binary + ":" + Tag,
		Files:      files,
		Entrypoint: []string{dir + binary},
		User:       "65532:65532",
	})
}

// Helm runs the pinned Helm against the cluster, in the repository's root. A
// template that names no registry has its images on the nodes.
func (i *Installer) Helm(ctx context.Context, c *cluster.Cluster, args ...string) (string, error) {
	return i.runHelm(ctx, c.Kubeconfig(), args...)
}

// BuildHelm compiles the pinned Helm, which takes a minute the first time: what waits for an
// installation should not wait for that.
func (i *Installer) BuildHelm(ctx context.Context) error {
	_, err := i.helmProgram(ctx)
	return err
}

// helmProgram is the pinned Helm's file, which the build cache keeps.
func (i *Installer) helmProgram(ctx context.Context) (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.helm != "" {
		return i.helm, nil
	}
	cmd := exec.CommandContext(ctx, "go", "tool", "-modfile=tools/helm/go.mod", "-n", "helm")
	cmd.Dir = i.Root
	out, err := output(cmd)
	i.helm = strings.TrimSpace(out)
	return i.helm, err
}

// Template renders the chart without a cluster.
func (i *Installer) Template(ctx context.Context, args ...string) (string, error) {
	return i.runHelm(ctx, os.DevNull, append([]string{"template"}, args...)...)
}

func (i *Installer) runHelm(ctx context.Context, kubeconfig string, args ...string) (string, error) {
	program, err := i.helmProgram(ctx)
	if err != nil {
		return "", err
	}
	if args[0] == "template" && !strings.Contains(strings.Join(args, " "), "image.repository=") {
		args = append(args, "--set", "localImages=true")
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = i.Root
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig,
		// Helm keeps caches in the home directory; ours stay in one place.
		"HELM_CACHE_HOME="+filepath.Join(i.Dir, "helm"), "HELM_CONFIG_HOME="+filepath.Join(i.Dir, "helm"),
		"HELM_DATA_HOME="+filepath.Join(i.Dir, "helm"))
	return output(cmd)
}

// Chart is the command of an operator: helm install with --wait. The extra
// arguments are --set and the like.
func (i *Installer) Chart(ctx context.Context, c *cluster.Cluster, extra ...string) error {
	args := append([]string{
		"install", "deploy/helm/heddle", "--generate-name", "--wait", "--timeout", "3m",
		"--create-namespace", "--namespace", "heddle-system",
		"--set", "image.repository=" + Registry, "--set", "image.tag=" + Tag,
	}, extra...)
	fmt.Fprintf(i.Log, "helm %s\n", strings.Join(args, " "))
	_, err := i.Helm(ctx, c, args...)
	return err
}

// output runs a command; its error carries the end of what it complained.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, tail(stderr.String()))
	}
	return stdout.String(), nil
}

func tail(s string) string {
	const most = 4000
	return s[max(0, len(s)-most):]
}
