// Package install puts heddle into a cluster of test/cluster the way an
// operator would: images that hold the binaries, and the Helm chart. It builds
// everything from the working tree, and pulls nothing.
package install

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/cluster/image"
)

// Tag is the tag of the images that Images makes; not latest, so that the
// kubelet asks no registry.
const Tag = "test"

// hook is the second program of the images that have the device plugin.
const hook = "heddle-cdi-hook"

// withHook are these images, as in tools/release.
func withHook() []string { return []string{"heddle-device-plugin", "heddle-node"} }

// Registry is the registry value that goes with them.
const Registry = "localhost"

// Installer knows where the working tree is and where built things go. It builds
// each thing once: to ask go whether a binary is current takes seconds, and tests ask
// a hundred times. Its methods may be called from several goroutines.
type Installer struct {
	// Root is the repository's root.
	Root string
	// Dir receives binaries and images; it must exist.
	Dir string
	// Log receives progress lines; nil means none.
	Log io.Writer

	mu    sync.Mutex
	built map[string]bool // binaries in Dir that are of this working tree
	helm  string          // the pinned Helm's program
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
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make room for images: %w", err)
	}
	return &Installer{Root: filepath.Dir(strings.TrimSpace(mod)), Dir: dir, Log: log}, nil
}

// Build compiles one of cmd/ and returns the file.
func (i *Installer) Build(ctx context.Context, binary string) (string, error) {
	return filepath.Join(i.Dir, binary), i.BuildAll(ctx, binary)
}

// BuildAll compiles several of cmd/ in one go, which looks at the module once.
// What is a module of its own is compiled in its directory. An image's second program
// comes with its first.
func (i *Installer) BuildAll(ctx context.Context, binaries ...string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	binaries = slices.Clone(binaries)
	if slices.ContainsFunc(withHook(), func(b string) bool { return slices.Contains(binaries, b) }) {
		binaries = append(binaries, hook)
	}
	binaries = slices.DeleteFunc(binaries, func(b string) bool { return i.built[b] })
	if err := i.build(ctx, binaries); err != nil {
		return err
	}
	if i.built == nil {
		i.built = map[string]bool{}
	}
	for _, b := range binaries {
		i.built[b] = true
	}
	return nil
}

func (i *Installer) build(ctx context.Context, binaries []string) error {
	build := []string{
		"build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w -X main.version=" + Tag, "-o", i.Dir + "/",
	}
	args := slices.Clone(build)
	for _, b := range binaries {
		dir := filepath.Join(i.Root, "cmd", b)
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil && b != hook {
			args = append(args, "./cmd/"+b)
			continue
		}
		cmd := exec.CommandContext(ctx, "go", append(slices.Clone(build), ".")...)
		cmd.Dir = dir
		if b == hook {
			// It runs on the node, and in an image that has nothing but a library.
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		}
		if _, err := output(cmd); err != nil {
			return err
		}
	}
	if len(args) == len(build) {
		return nil
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = i.Root
	_, err := output(cmd)
	return err
}

// Image builds a binary, packs it with the libraries it needs, and loads it
// into the node as localhost/<binary>:test.
func (i *Installer) Image(ctx context.Context, c *cluster.Cluster, binary string) error {
	fmt.Fprintf(i.Log, "building %s\n", binary)
	if _, err := i.Build(ctx, binary); err != nil {
		return err
	}
	archive, err := i.Pack(binary)
	if err != nil {
		return err
	}
	return c.LoadImage(ctx, archive)
}

// Pack packs a binary that is built with the libraries it needs, as
// localhost/<binary>:test, and returns the file.
func (i *Installer) Pack(binary string) (archive string, err error) {
	file := filepath.Join(i.Dir, binary)
	archive = file + ".tar"
	const dir = "/usr/local/bin/"
	files := map[string]string{dir + binary: file}
	if slices.Contains(withHook(), binary) {
		files[dir+hook] = filepath.Join(i.Dir, hook)
	}
	err = image.Pack(archive, image.Spec{
		Name:       Registry + "/" + binary + ":" + Tag,
		Files:      files,
		Entrypoint: []string{dir + binary},
		User:       "65532:65532",
	})
	if err != nil {
		return "", fmt.Errorf("pack %s: %w", binary, err)
	}
	return archive, nil
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
	if args[0] == "template" && !strings.Contains(strings.Join(args, " "), "registry=") {
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
		"--set", "registry=" + Registry, "--set", "tag=" + Tag,
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
