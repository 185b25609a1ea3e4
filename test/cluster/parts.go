//go:build linux

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// part is one thing the Builder builds.
type part struct {
	name   string
	cost   time.Duration // of one core, when cold
	inputs []string      // files and directories its key covers
	params string        // what else its key covers
	build  func(ctx context.Context, out string) error
}

// key hashes everything the result depends on but the machine's C library.
func (p part) key(toolchain string) (string, error) {
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%s\n%s\n%s\n", p.name, toolchain, p.params)
	for _, input := range p.inputs {
		err := filepath.WalkDir(input, func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(file, "_test.go") {
				return err
			}
			rel, err := filepath.Rel(filepath.Dir(input), file)
			if err != nil {
				return err
			}
			return hashFile(sum, rel, file)
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:12], nil
}

func hashFile(sum io.Writer, name, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(sum, "%s %d\n", name, info.Size())
	_, err = io.Copy(sum, f)
	return err
}

// sharedTags and sharedCGO are those of heddle's own programs, and the versions in build/*/go.mod are
// those of its modules wherever the program compiles with them: the packages of Kubernetes and gRPC
// are then compiled once, and not once for each program.
const sharedTags, sharedCGO = "grpcnotrace", "CGO_ENABLED=1"

// noCGO is for programs that share nothing, and that would need libraries of C.
const noCGO = "CGO_ENABLED=0"

// parts lists everything, in the order of building: the cheap first, so that a
// missing tool shows before ten minutes of compiling.
func (b Builder) parts() []part {
	return []part{
		b.nodePart(), b.imagesPart(), b.runcPart(),
		b.modulePart("cni", 10*time.Second, noCGO, "-s -w", nil,
			"github.com/containernetworking/plugins/plugins/main/bridge",
			"github.com/containernetworking/plugins/plugins/main/loopback",
			"github.com/containernetworking/plugins/plugins/ipam/host-local"),
		b.modulePart("containerd", 3*time.Minute, sharedCGO,
			"-s -w -X github.com/containerd/containerd/v2/version.Version="+
				b.pin("containerd", "github.com/containerd/containerd/v2"),
			// Snapshotters this cluster does not use, each with C or large dependencies.
			[]string{"-tags", "no_btrfs no_devmapper no_zfs " + sharedTags},
			"github.com/containerd/containerd/v2/cmd/containerd",
			"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
			"github.com/containerd/containerd/v2/cmd/ctr"),
		b.kwokPart(),
		b.kubernetesPart(),
	}
}

// modulePart builds programs of other modules, at the versions pinned in
// build/NAME/go.mod, with or without cgo.
func (b Builder) modulePart(
	name string, cost time.Duration, cgo, ldflags string, flags []string, programs ...string,
) part {
	dir := b.moduleDir(name)
	flags = append(slices.Clone(flags), "-ldflags", ldflags)
	return part{
		name: name, cost: cost, inputs: []string{dir}, params: strings.Join(append(flags, programs...), "\n"),
		build: func(ctx context.Context, out string) error {
			args := append(append(slices.Clone(flags), "-o", out+string(filepath.Separator)), programs...)
			return b.goBuild(ctx, dir, []string{cgo}, args)
		},
	}
}

// kwokStages are what kwok does to its nodes and pods, in the folder of its module. It has none by itself.
const kwokStages = "node/fast/node-initialize node/heartbeat-with-lease/node-heartbeat-with-lease " +
	"pod/fast/pod-ready pod/fast/pod-complete pod/fast/pod-delete"

// stagesFile has them, beside kwok.
const stagesFile = "stages.yaml"

func (b Builder) kwokPart() part {
	p := b.modulePart("kwok", time.Minute, sharedCGO, "-s -w", []string{"-tags", sharedTags}, "sigs.k8s.io/kwok/cmd/kwok")
	p.params += "\n" + kwokStages
	program := p.build
	p.build = func(ctx context.Context, out string) error {
		if err := program(ctx, out); err != nil {
			return err
		}
		list := exec.CommandContext(ctx, "go", "list", "-m", "-mod=readonly", "-f", "{{.Dir}}", "sigs.k8s.io/kwok")
		list.Dir = b.moduleDir("kwok")
		folder, err := b.output(ctx, list)
		if err != nil {
			return fmt.Errorf("find kwok's module: %w", err)
		}
		var all []byte
		for name := range strings.FieldsSeq(kwokStages) {
			stage, err := os.ReadFile(filepath.Join(strings.TrimSpace(folder), "kustomize", "stage", name+".yaml"))
			if err != nil {
				return fmt.Errorf("stages of kwok: %w", err)
			}
			all = append(append(all, stage...), "\n---\n"...)
		}
		return os.WriteFile(filepath.Join(out, stagesFile), all, 0o644)
	}
	return p
}

func (b Builder) moduleDir(name string) string {
	return filepath.Join(b.Source, "test", "cluster", "build", name)
}

// kubernetesPart builds the one binary of all components and a link per component.
func (b Builder) kubernetesPart() part {
	version := b.pin("hyper", "k8s.io/kubernetes")
	p := b.modulePart("kubernetes", 9*time.Minute, sharedCGO, kubernetesFlags(version), nil, ".")
	p.inputs = []string{b.moduleDir("hyper")}
	p.build = func(ctx context.Context, out string) error {
		args := []string{"-tags", sharedTags, "-ldflags", kubernetesFlags(version), "-o", filepath.Join(out, "hyper"), "."}
		if err := b.goBuild(ctx, b.moduleDir("hyper"), []string{sharedCGO}, args); err != nil {
			return err
		}
		for _, c := range []string{
			"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl",
		} {
			if err := os.Symlink("hyper", filepath.Join(out, c)); err != nil {
				return err
			}
		}
		return nil
	}
	return p
}

// kubernetesFlags are the linker flags that set the components' version:
// built as dependencies they would call themselves v0.0.0-master+$Format.
func kubernetesFlags(version string) string {
	minor := ""
	if fields := strings.Split(version, "."); len(fields) > 1 {
		minor = fields[1]
	}
	var flags strings.Builder
	flags.WriteString("-s -w")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, kv := range [][2]string{
			{"gitVersion", version},
			{"gitMajor", "1"},
			{"gitMinor", minor},
			{"gitTreeState", "clean"},
			{"gitCommit", strings.Repeat("0", 40)},
			{"buildDate", "2026-01-01T00:00:00Z"},
		} {
			_, _ = fmt.Fprintf(&flags, " -X %s.%s=%s", pkg, kv[0], kv[1])
		}
	}
	return flags.String()
}

// pin is the version of a module in build/NAME/go.mod, or empty.
func (b Builder) pin(name, module string) string {
	data, err := os.ReadFile(filepath.Join(b.moduleDir(name), "go.mod"))
	if err != nil {
		return "" // The key of the part, which reads the same file, reports it.
	}
	return pinned(string(data), module)
}

func pinned(gomod, module string) string {
	for line := range strings.Lines(gomod) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1]
		}
	}
	return ""
}
